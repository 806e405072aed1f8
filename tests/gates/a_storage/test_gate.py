"""Gate A from end to end on a small file."""

import json

import polars as pl
import pytest

from workbench.gates.a_storage import GATE
from workbench.gates.a_storage.cells import PAGE, RECORD
from workbench.gates.a_storage.file import FILE_NAME
from workbench.gates.a_storage.walk import Walk
from workbench.gates.base import gate_state, run_gate
from workbench.hardware import machine
from workbench.schema import Evidence, Outcome, Status, read_events
from workbench.schema.envelopes import Envelope

TINY = ("file_bytes=8MiB", "in_flight_bytes=16MiB", "seconds=0.002", "close_rounds=1", f"sizes=['{PAGE}', '{RECORD}']")


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_STORE", str(tmp_path / "stores" / "mini"))
    return tmp_path / "stores"


def test_a_small_run_leaves_an_envelope_tables_figures_and_events_and_no_file(store, tmp_path, capsys):
    folder = run_gate(GATE, GATE.configure(smoke=True, settings=TINY), root=tmp_path / "runs")
    result = folder.result
    assert (result.evidence, result.verdict.outcome) == (Evidence.PHYSICAL, Outcome.INCONCLUSIVE)
    clauses = {clause.code: clause.value for clause in result.verdict.criteria}
    assert clauses["A.cold"] == 1.0
    assert list(store.iterdir()) == []
    assert f"a probe file of 8 MiB in {store}, removed afterwards" in capsys.readouterr().err

    envelope = Envelope.from_json(folder.artifacts / "envelope.json")
    assert (envelope.measured.profile, envelope.measured.machine) == ("mini", machine().digest)
    assert envelope.measured.expert.read_bytes == 27_648
    assert f"{envelope.measured.expert.reader} at depth {envelope.measured.expert.depth}" == result.tags["expert"]

    runs = pl.read_parquet(folder.artifacts / "tables" / "runs.parquet")
    assert set(runs["phase"]) == {"grid", "warm", "refine", "beside", "split"}
    assert {"buffered", "mmap"} < set(runs["reader"])
    assert set(runs["beside"]) == {"idle", "mlx", "python"}
    assert len(read_events(folder.path / "events.parquet")) == len(runs)
    assert {path.stem for path in (folder.artifacts / "figures").glob("*.png")} == {
        "bandwidth", "records", "pages", "latency", "beside", "crossover", "drift",
    }  # fmt: skip
    assert len(pl.read_parquet(folder.artifacts / "tables" / "passes.parquet")) == 6
    assert set(GATE.shown) <= set(result.tables)
    assert result.tables["crossover"][-1]["records"] == 128
    assert json.loads((folder.path / "result.json").read_text())["metrics"]["storage/expert_bandwidth_gbps"] > 0


def test_an_interrupted_run_keeps_what_it_measured_and_removes_the_file(store, tmp_path, monkeypatch):
    def stop(walk):
        walk.phase("grid", [], 1)
        walk.rows.append({"phase": "grid", "round": 0, "reader": "uring", "size": RECORD, "depth": 1, "cache": "cold",
                          "beside": "idle", "start_ns": 1, "seconds": 1.0, "logical_bytes": 1, "physical_bytes": 1,
                          "bandwidth_gbps": 1.0})  # fmt: skip
        raise KeyboardInterrupt

    monkeypatch.setattr(Walk, "go", stop)
    with pytest.raises(KeyboardInterrupt):
        run_gate(GATE, GATE.configure(smoke=True, settings=TINY), root=tmp_path / "runs")
    state = gate_state(GATE, "mini", tmp_path / "runs")
    assert state.word == Status.INTERRUPTED.value
    assert len(pl.read_parquet(state.folder.artifacts / "tables" / "runs.parquet")) == 1
    assert not (store / FILE_NAME).exists()
