import json

import polars as pl
import pytest

from workbench.analysis.storage import RUN_SCHEMA, Choice
from workbench.analysis.storage_envelope import ENVELOPE_NAME, envelope_of, latest_envelope, recommend
from workbench.config import Config
from workbench.hardware import filesystem_identity, machine
from workbench.paths import store_folder
from workbench.readers import Disk
from workbench.schema import Criterion, Evidence, RunFolder, decide
from workbench.schema.envelopes import Envelope, Measured

PAGE, LARGE = "page 4 KiB", "sequential"


def runs_of(latency_us=50.0, stream_gbps=2.0, bandwidth_gbps=3.0, iops=100_000.0):
    """Runs of a disk that follows the model exactly, three each."""
    rows = []
    for size, num_bytes in ((PAGE, 4096), ("record", 2_764_800), (LARGE, 8_388_608)):
        for depth in (1, 64):
            alone_us = latency_us + num_bytes / stream_gbps / 1000
            rate = min(depth / alone_us * 1e6, bandwidth_gbps * 1e9 / num_bytes, iops)
            for number in range(3):
                cell = {"reader": "uring", "size": size, "depth": depth, "cache": "cold", "beside": "idle"}
                figures = {"bandwidth_gbps": rate * num_bytes / 1e9, "reads_per_s": rate, "p50_us": alone_us}
                rows.append({"phase": "grid", "round": number, "reads": 1, "physical_bytes": num_bytes, **cell, **figures})
    return pl.DataFrame(rows, schema=RUN_SCHEMA)


def measured_of(runs, **more):
    best = Choice(reader="uring", depth=64)
    fields = {
        "profile": "mini",
        "machine": machine().digest,
        "filesystem": filesystem_identity(store_folder("mini")),
        "unix_s": 1.0,
        "quiet": True,
        "expert": recommend(runs, best, "record", 2_764_800),
        "ple": recommend(runs, best, PAGE, 4096),
        "sequential_from": 0.5,
        "split_components": True,
    }
    return Measured(**(fields | more))


def envelope(**more):
    runs = runs_of()
    return envelope_of(runs, name="here", source="a run", page=PAGE, large=LARGE, measured=measured_of(runs, **more))


def test_the_four_numbers_of_a_disk_are_found_again():
    found = envelope()
    assert found.latency_us == pytest.approx(50.0)
    assert found.stream_gbps == pytest.approx(2.0)
    assert found.bandwidth_gbps == pytest.approx(3.0)
    assert found.iops == pytest.approx(100_000)
    assert (found.measured.expert.bandwidth_gbps, found.measured.expert.spread) == (pytest.approx(3.0), 0.0)


def test_an_envelope_survives_its_file_and_makes_a_disk(tmp_path):
    path = tmp_path / ENVELOPE_NAME
    path.write_text(json.dumps(envelope().model_dump(mode="json")))
    read = Envelope.from_json(path)
    assert read == envelope()
    assert Disk(read).ready_ns(0, 4096) == pytest.approx(52_048, rel=0.01)


class Settings(Config):
    pass


@pytest.fixture
def finished(tmp_path, monkeypatch):
    """Files an envelope as a finished run."""
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path))

    def file(name, *, smoke=False, cold=1.0, **more):
        tags = {"smoke": str(smoke).lower()}
        folder = RunFolder.create(tmp_path, "gate_a", Settings(), profile="mini", evidence=Evidence.PHYSICAL, tags=tags)
        content = envelope(**more).model_copy(update={"name": name}).model_dump(mode="json")
        (folder.artifacts / ENVELOPE_NAME).write_text(json.dumps(content))
        clause = Criterion(code="A.cold", statement="s", value=cold, low=cold, high=cold, relation=">=", threshold=1.0)
        folder.finish(verdict=decide([clause]))
        return folder

    return file


def test_the_newest_full_envelope_of_this_machine_filesystem_and_profile_is_found(tmp_path, finished):
    assert latest_envelope(tmp_path, "mini") is None
    finished("first")
    finished("second")
    finished("smoke", smoke=True)
    finished("another machine", machine="x")
    finished("another disk", filesystem="x")
    finished("not cold", cold=0.5)
    finished("beside others", quiet=False)
    finished("another profile", profile="slice")
    unreadable = finished("of another version")
    (unreadable.artifacts / ENVELOPE_NAME).write_text('{"strange": 1}')
    assert latest_envelope(tmp_path, "mini").name == "second"
    assert latest_envelope(tmp_path, "flash-next") is None
