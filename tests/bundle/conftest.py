"""Finished runs and comparisons whose every number follows from their events, and bundles of them that were tampered with."""

import io
import tarfile

import pytest

from workbench.abba.arms import fields_of
from workbench.abba.power import PowerState
from workbench.abba.records import AbbaConfig, ArmRecord
from workbench.abba.runner import run_abba
from workbench.abba.watch import Reading, Watch, summarise
from workbench.analysis.detectors import run_detectors
from workbench.analysis.run_metrics import run_metrics, token_series
from workbench.bundle import make_bundle
from workbench.experiments.generate import GenerateConfig
from workbench.schema import Evidence, RunFolder
from workbench.schema.results import write_json

TEXT_DIGEST = "f2ca1bb6c7e907d06dafe4687e579fce76b37e4e93b7605022da52e6ccc26fd2"  # of "test\n"
PLAN = {"turns": ["def main():"], "max_tokens": 30}


def log_decode(log, token_ns, *, tokens=30, wait_ns=200_000):
    log.add(0, "mark", name="request_start", request=0)
    for position in range(tokens):
        start = position * token_ns
        where = {"request": 0, "phase": "decode", "position": position, "layer": 1, "store": "expert"}
        log.add(start, "demand", hits=9, joined=0, misses=1, logical_bytes=10_000, **where)
        times = {"submit_ns": start, "ready_ns": start + 150_000, "seen_ns": start + 160_000}
        sizes = {"logical_bytes": 1000, "physical_bytes": 4096, "queue_depth": 1}
        log.add(start, "ticket", intent="exact", outcome="used_late", identity=position, **times, **sizes, **where)
        log.add(start, "wait", duration_ns=wait_ns, guarded=1, consumed=1, **where)
        log.add(start + token_ns, "token", request=0, phase="decode", position=position, duration_ns=token_ns, committed_tokens=1)


def write_run(root, config, token_ns):
    """A finished generate run with invented events and everything computed from them."""
    folder = RunFolder.create(root, "generate", config, profile="mini", evidence=Evidence.PHYSICAL)
    log_decode(folder.events, token_ns)
    (folder.artifacts / "text.md").write_text("test\n")
    frame = folder.events.frame()
    metrics = run_metrics(frame) | {"e2e/peak_rss_bytes": 1e8, "e2e/working_set_bytes": 5e7}
    tags = {"output_digest": TEXT_DIGEST, "state_digest": "22" * 32, "routing_digest": "33" * 32, "store_digest": "44" * 32}
    findings = [finding.row() for finding in run_detectors(frame, metrics)]
    folder.finish(metrics=metrics, per_token=token_series(frame), tags=tags, tables={"findings": findings})
    return folder


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """One finished generate run."""
    return write_run(tmp_path_factory.mktemp("runs"), GenerateConfig.build(PLAN), 10_000_000)


@pytest.fixture(scope="session")
def series(tmp_path_factory):
    """A finished comparison of four cohorts, B a tenth slower."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("workbench.abba.runner.run_arm", invent_arm)
        patch.setattr("workbench.abba.arms.sources_digest", lambda: "55" * 32)
        config = AbbaConfig.build({"base": PLAN, "change": ["max_tokens=31"], "cohorts": 4, "max_cohorts": 4})
        return run_abba(config, root=tmp_path_factory.mktemp("runs"), watch=Watch)


def invent_arm(config, name, *, plan, home, series, watch):
    number = int(home.parent.name[1:])
    token_ns = (10_000_000 if name[-1] == "A" else 11_000_000) + 10_000 * number + (5_000 if name == "2B" else 0)
    child = write_run(home / "arm", GenerateConfig.from_toml(plan), token_ns)
    values = {"swap_out_bytes": 0, "memory_pressure": 0.2, "stolen_s": 0.0}
    readings = [Reading(t_ns=second * 10**9, busy_s=second * 1.0, own_s=second * 0.95, **values) for second in range(4)]
    rows = [{name: value for name, value in vars(reading).items() if name != "processes"} for reading in readings]
    write_json(home / "watch.json", rows)
    return ArmRecord(
        name=name,
        exit_code=0,
        started_ns=number * 10**9,
        duration_s=3.0,
        folder=str(child.path.relative_to(series)),
        watch=summarise(readings, PowerState(), PowerState()),
        **fields_of(config, child, child.result, {"sources": "55" * 32}),
    )


@pytest.fixture(scope="session")
def bundles(tmp_path_factory, run, series):
    """Paths of an untouched bundle of each."""
    folder = tmp_path_factory.mktemp("bundles")
    made = {"run": folder / "run.bundle.tar", "series": folder / "series.bundle.tar"}
    make_bundle(run, made["run"])
    make_bundle(series, made["series"])
    return made


@pytest.fixture(scope="session")
def members():
    """Reads the content of a bundle, by name."""

    def read(path):
        with tarfile.open(path) as archive:
            return {member.name: archive.extractfile(member).read() for member in archive.getmembers()}

    return read


@pytest.fixture
def pack(tmp_path):
    """Writes a bundle with the given content."""

    def write(content):
        path = tmp_path / "altered.bundle.tar"
        with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
            for name, data in content.items():
                header = tarfile.TarInfo(name)
                header.size = len(data)
                archive.addfile(header, io.BytesIO(data))
        return path

    return write
