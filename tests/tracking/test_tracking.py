"""Filing in MLflow; the store is looked at with plain sqlite."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

from workbench.config import Config
from workbench.errors import BadInput
from workbench.schema import Criterion, Evidence, RunFolder, Status, decide
from workbench.tracking import Store, rebuild, track

# MLflow and SQLAlchemy warn of each other
pytestmark = pytest.mark.filterwarnings("ignore")

GOLDEN = Path(__file__).parents[1] / "data" / "golden_run"


class Plan(Config):
    policy: str = "lru"
    cache_bytes: int = 4096


def make_run(root, kind="generate", *, tags=None, metrics=None, status=Status.FINISHED, error=None):
    folder = RunFolder.create(
        root, kind, Plan(), profile="mini", evidence=Evidence.PHYSICAL, tags=tags, command=["workbench", kind]
    )
    folder.finish(metrics=metrics or {}, status=status, error=error)
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A gate's run, a failed one, one that never finished, and a comparison with two arms."""
    root = tmp_path_factory.mktemp("runs") / "[r]*{b} ~&="
    shutil.copytree(GOLDEN / "gate_b", root / "gate_b")
    make_run(root, status=Status.FAILED, error="BadInput: no store", metrics={"overlap/hidden_fraction": float("nan")})
    lost = RunFolder.create(root, "trace", Plan(), profile="mini", evidence=Evidence.TRACE)
    about = lost.environment | {"pid": 2**30}
    (lost.path / "environment.json").write_text(json.dumps(about))
    series = make_run(root, "abba")
    for name in ("1A", "2B"):
        tags = {"parent": f"abba/{series.path.name}", "cohort": "c01", "position": name[0], "arm": name[1]}
        make_run(
            series.path / "arms" / "c01" / name / "arm", tags=tags, metrics={"e2e/decode_tps": 10 / 3, "e2e/tau": float("inf")}
        )
    return root


def content(root):
    """Everything that people see in the store, by folder, without the ids that MLflow draws."""
    with sqlite3.connect(root / "mlflow" / "mlflow.db") as store:
        rows = store.execute(
            "select r.run_uuid, r.name, r.status, r.start_time, r.end_time, e.name, r.artifact_uri from runs r"
            " join experiments e on e.experiment_id = r.experiment_id where r.lifecycle_stage = 'active'"
        ).fetchall()
        places = dict(store.execute("select run_uuid, value from tags where key = 'folder'").fetchall())
        runs = {}
        for run, name, status, start, end, experiment, artifacts in rows:
            tags = dict(store.execute("select key, value from tags where run_uuid = ?", [run]).fetchall())
            if "mlflow.parentRunId" in tags:
                tags["mlflow.parentRunId"] = places[tags["mlflow.parentRunId"]]
            files = Path(unquote(artifacts.removeprefix("file://")))
            runs[places[run]] = {
                "name": name,
                "status": status,
                "times": (start, end),
                "experiment": experiment,
                "tags": tags,
                "params": dict(store.execute("select key, value from params where run_uuid = ?", [run]).fetchall()),
                "metrics": sorted(
                    store.execute("select key, value, step, is_nan from metrics where run_uuid = ?", [run]).fetchall()
                ),
                "files": sorted(path.relative_to(files).as_posix() for path in files.rglob("*") if path.is_file()),
            }
    return runs


@pytest.fixture(scope="module")
def filed(root):
    assert "MLFLOW_TRACKING_URI" not in os.environ
    track(root)
    return content(root)


def test_every_folder_becomes_one_run_of_its_experiment(filed):
    assert sorted((run["experiment"], run["status"]) for run in filed.values()) == [
        ("abba", "FINISHED"),
        ("abba", "FINISHED"),
        ("abba", "FINISHED"),
        ("gate-B locality", "FINISHED"),
        ("generate", "FAILED"),
        ("trace", "KILLED"),
    ]


def test_a_gates_run_shows_its_verdict_figures_and_series(filed):
    run = filed["gate_b/20260101-000000000-cafe"]
    assert run["name"] == "inconclusive mini smoke 01-01 00:00:00"
    assert run["times"] == (1767225600000, 1767225601500)
    tags = run["tags"]
    assert {name: tags[name] for name in ("kind", "gate", "profile", "evidence", "verdict", "codes", "machine", "commit")} == {
        "kind": "gate_b",
        "gate": "B",
        "profile": "mini",
        "evidence": "trace",
        "verdict": "inconclusive",
        "codes": "B.sample",
        "machine": "golden",
        "commit": "0" * 12,
    }
    assert tags["mlflow.note.content"].startswith("## INCONCLUSIVE: B.sample\n\n")
    assert "|---|" in tags["mlflow.note.content"]
    assert len(run["params"]) <= 15
    assert run["params"]["max_miss_ratio"] == "0.85"
    metrics = {(key, step): value for key, value, step, _ in run["metrics"]}
    assert metrics["routing/union_b4", 0] == 10.0
    assert metrics["criteria/B.breakeven", 0] == 0.2
    assert [metrics["per_token/routing.misses_per_token", step] for step in range(12)] == [0.0] * 12
    assert {"artifacts/figures/unions.png", "events.parquet", "result.json", "config.toml", "tables/unions.json"} <= set(
        run["files"]
    )


def test_arms_are_children_named_by_position_and_coloured_by_arm(filed):
    arms = {run["name"]: run for run in filed.values() if "arm" in run["tags"]}
    assert sorted(arms) == ["c01-1A", "c01-2B"]
    assert {arms[name]["tags"]["mlflow.runColor"] for name in arms} == {"#4c78a8", "#f58518"}
    [series] = [place for place in filed if place.count("/") == 1 and place.startswith("abba/")]
    assert {run["tags"]["mlflow.parentRunId"] for run in arms.values()} == {series}
    assert not any("arms/" in file for file in filed[series]["files"])


def test_numbers_are_rounded_nan_is_kept_and_infinity_is_a_tag(filed):
    arm = next(run for run in filed.values() if run["name"] == "c01-1A")
    assert arm["metrics"] == [("e2e/decode_tps", 3.3333, 0, 0)]
    assert arm["tags"]["infinite.e2e/tau"] == "inf"
    failed = next(run for run in filed.values() if run["status"] == "FAILED")
    assert failed["metrics"] == [("overlap/hidden_fraction", 0.0, 0, 1)]
    assert failed["tags"]["mlflow.note.content"].startswith("**failed**: BadInput: no store")


def test_a_clause_of_one_disk_is_filed_under_a_name_that_mlflow_takes(root, filed):
    clause = Criterion(code="C.waves@some-disk", statement="x", value=1.0, low=0.5, high=2.0, relation=">=", threshold=1.5)
    folder = RunFolder.create(root, "gate_c", Plan(), profile="mini", evidence=Evidence.EMULATED)
    folder.finish(verdict=decide([clause], summary="x"))
    (run,) = track(root)
    assert Store(root).client.get_run(run.run_id).data.metrics["criteria/C.waves on some-disk"] == 1.0
    Store(root).client.delete_run(run.run_id)
    shutil.rmtree(folder.path)


def test_what_is_filed_is_the_same_from_the_database_and_from_mlflow(root, filed):
    store = Store(root)

    def listed(runs):
        return sorted((run.place, run.run_id, run.digest) for run in runs)

    assert listed(store._runs_in_database()) == listed(store._runs_on_server()) != []
    assert list(Store(root / "none").filed_runs()) == []


def test_filing_again_files_only_what_is_new_and_a_rebuild_gives_the_same_store(root, filed):
    new = make_run(root, metrics={"e2e/decode_tps": 5.0})
    assert [each.place for each in track(root)] == [f"generate/{new.path.name}"]
    assert track(root) == []
    after = content(root)
    assert {place: run for place, run in after.items() if place in filed} == filed
    with pytest.raises(RuntimeError, match="a fresh one"):
        rebuild(root)
    command = [sys.executable, "-m", "workbench.cli", "track", "rebuild"]
    done = subprocess.run(command, env=os.environ | {"WORKBENCH_RUNS": str(root)}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert content(root) == after


@pytest.mark.parametrize("mark", "?#%")
def test_a_folder_that_mlflow_would_take_for_another_is_refused(mark, tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(BadInput, match=r"takes . for parts of an address"):
        _ = Store(tmp_path / f"a{mark}b").client
    assert not list(tmp_path.iterdir())
