"""A comparison and its arms in MLflow, filed to a running server by its address alone and looked at in a browser."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from workbench.abba.arms import fields_of
from workbench.abba.power import PowerState
from workbench.abba.records import ORDER, AbbaConfig, ArmRecord, WatchRecord
from workbench.abba.runner import run_abba
from workbench.config import Config, read_toml
from workbench.schema import Evidence, RunFolder
from workbench.schema.results import ARM_VARIABLE
from workbench.tracking import Store, compare_link, curves_link, run_link, track

# MLflow and SQLAlchemy warn of each other
pytestmark = pytest.mark.filterwarnings("ignore")

BLUE, ORANGE = "#4c78a8", "#f58518"
WATCH = WatchRecord(wall_s=1, num_samples=2, longest_gap_s=1, swap_out_bytes=0, memory_pressure=0, other_cores=0, stolen_cores=0)


class Policy(Config):
    name: str = "lfru"
    share: float = 0.5


class Plan(Config):
    max_tokens: int = 8
    policy: Policy = Policy()


def invent_arm(config, name, *, plan, home, series, watch):
    """An arm without a process: a result folder as `generate` leaves it, tagged as the runner tags it."""
    number = int(home.parent.name[1:])
    rate = {"A": 10.0, "B": 11.0}[name[-1]] * (1 + 0.001 * number)
    tags = {"parent": f"abba/{series.name}", "cohort": home.parent.name, "position": name[0], "arm": name[1]}
    digests = dict.fromkeys(config.digests, "ab" * 32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ARM_VARIABLE, json.dumps(tags))
        made = Plan.build(read_toml(plan))
        child = RunFolder.create(home / "arm", "generate", made, profile="mini", evidence=Evidence.PHYSICAL, tags=digests)
    waits = [1000 / rate + 0.1 * (step % 3) for step in range(12)]
    child.finish(metrics={"e2e/decode_tps": rate}, per_token={"e2e/tpot_p50_ms": waits})
    about = fields_of(config, child, child.result, {"sources": "s"})
    folder = str(child.path.relative_to(series))
    return ArmRecord(name=name, exit_code=0, started_ns=number, duration_s=1, folder=folder, watch=WATCH, **about)


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    """A comparison of one cohort in which B is a tenth faster."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("workbench.abba.runner.run_arm", invent_arm)
        base = {"max_tokens": 8, "policy": {"name": "lfru", "share": 0.5}}
        config = AbbaConfig.build({"base": base, "change": ["policy.name=lru"], "cohorts": 1})
        return run_abba(config, root=tmp_path_factory.mktemp("runs"), watch=lambda: PowerState)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The address of an MLflow server on this machine, with a store of its own."""
    folder = tmp_path_factory.mktemp("server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder}/server.db", "--artifacts-destination", str(folder / "artifacts")]
    environment = os.environ | Store(folder).server_environment
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=log, start_new_session=True)
    address = f"http://127.0.0.1:{port}"
    try:
        wait_for(f"{address}/health", process, folder / "log")
        yield address
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(20)


def wait_for(address, process, log):
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except (urllib.error.URLError, TimeoutError):
            time.sleep(0.2)
    raise AssertionError(log.read_text())


@pytest.fixture(scope="module")
def filed(series, server):
    """What was filed, by nothing but the server's address in the environment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", server)
        return track(series.path.parents[1])


def search(server, experiment):
    """Runs of an experiment by the server's own interface."""
    body = json.dumps({"experiment_ids": [experiment], "max_results": 1000}).encode()
    request = urllib.request.Request(
        f"{server}/api/2.0/mlflow/runs/search", data=body, headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)["runs"]


def flat(pairs):
    return {pair["key"]: pair["value"] for pair in pairs}


def test_a_server_by_its_address_alone_gets_everything(series, server, filed):
    assert not (series.path.parents[1] / "mlflow").exists(), "nothing is stored beside the results"
    runs = {run["info"]["run_name"]: run for run in search(server, filed[0].experiment_id)}
    names = [f"c01-{arm}" for arm in ORDER]
    assert len(runs) == 5
    (parent,) = [run for name, run in runs.items() if name not in names]
    tags = flat(parent["data"]["tags"])
    assert tags["verdict"] == "inconclusive"
    assert tags["mlflow.note.content"].startswith("## INCONCLUSIVE: abba.indicative")
    assert flat(parent["data"]["params"])["change"] == "policy.name=lru"
    assert "share" not in flat(parent["data"]["params"])
    metrics = flat(parent["data"]["metrics"])
    assert metrics["effect/ratio"] == 1.1
    assert metrics["cohorts/ratio"] == 1.1
    for name in names:
        arm = runs[name]["data"]
        tags = flat(arm["tags"])
        assert tags["mlflow.parentRunId"] == parent["info"]["run_id"]
        assert tags["mlflow.runColor"] == {"A": BLUE, "B": ORANGE}[name[-1]]
        params = flat(arm["params"])
        assert params.pop("config_sha")
        assert params == {"name": {"A": "lfru", "B": "lru"}[name[-1]]}, "the changed parameters only"


def test_filing_again_files_nothing(series, server, filed, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    assert track(series.path.parents[1]) == []


NAMES = """[...new Set([...document.body.innerText.matchAll(/c01-[1-4][AB]/g)].map(found => found[0]))]"""
CURVES = """[...document.querySelectorAll("path.js-line")]
    .filter(line => line.style.strokeOpacity === "1").map(line => line.style.stroke).sort()"""


def test_the_charts_show_four_curves_in_order_and_two_colours(server, filed, browser, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    arms = [each for each in filed if each.is_arm]
    browser.open(curves_link(arms[0].experiment_id, *arms[0].cohort, os.environ))
    assert browser.wait(CURVES, lambda lines: lines and len(lines) == 4) == sorted([rgb(BLUE), rgb(ORANGE)] * 2)
    assert browser.wait(NAMES, bool) == [f"c01-{arm}" for arm in ORDER]
    browser.picture(tmp_path / "curves.png")
    assert browser.complaints == []


def test_the_arms_side_by_side_show_only_what_changed(server, filed, browser, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    arms = [each for each in filed if each.is_arm]
    browser.open(compare_link(arms[0].experiment_id, [each.run_id for each in arms], os.environ))
    words = browser.wait("document.body.innerText.split(/\\s+/)", lambda found: found and found.count("lru") >= 2)
    assert [word for word in words if word in ("lfru", "lru")][-4:] == ["lfru", "lru", "lru", "lfru"]
    assert not {"share", "max_tokens"} & set(words)
    assert browser.wait(NAMES, bool) == [f"c01-{arm}" for arm in ORDER]
    browser.picture(tmp_path / "table.png")
    assert browser.complaints == []


def test_the_comparisons_own_page_begins_with_its_verdict(server, filed, browser, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    (parent,) = [each for each in filed if not each.is_arm]
    browser.open(run_link(parent.experiment_id, parent.run_id, os.environ))
    text = browser.wait("document.body.innerText", lambda found: found and "abba.indicative" in found)
    assert "INCONCLUSIVE: abba.indicative" in text
    browser.picture(tmp_path / "verdict.png")
    assert browser.complaints == []


def rgb(colour):
    red, green, blue = bytes.fromhex(colour[1:])
    return f"rgb({red}, {green}, {blue})"
