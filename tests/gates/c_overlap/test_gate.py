"""Gate C from end to end on a planted disk: slow, and with a pipe that charges by the read. Its arms run in this process."""

import json

import pytest

from workbench.abba.records import ORDER, ArmRecord, CohortRecord, Series, WatchRecord
from workbench.config import with_settings
from workbench.experiments.generate import GenerateConfig, run_generate
from workbench.gates.base import run_gate
from workbench.gates.c_overlap import GATE
from workbench.gates.c_overlap.plan import SPLIT, WAVES
from workbench.gates.shared import arms
from workbench.schema import Evidence, Outcome, RunFolder, list_runs
from workbench.schema.results import write_json

NOTHING = dict.fromkeys(("swap_out_bytes", "memory_pressure", "other_cores", "stolen_cores"), 0)
SEEN = WatchRecord(wall_s=1, num_samples=2, longest_gap_s=1, **NOTHING)
SMALL = ("prompt='a'", "warm_up_tokens=1", "tokens=4", "orders=1", "faults=1", "tiles=[8]")


@pytest.fixture
def disk(mini_store, tmp_path):
    """An envelope of a disk on which a read takes 6 ms and every further one 1 ms more, however small."""
    known = {"name": "planted", "device": "none", "source": "a test", "stream_gbps": 1.0, "bandwidth_gbps": 1.0}
    path = tmp_path / "planted.json"
    path.write_text(json.dumps({**known, "latency_us": 6000.0, "iops": 1000.0}))
    return path


def run_here(config, *, root):
    """A series whose cohorts all count; its arms are real runs, but of this process."""
    series = RunFolder.create(root, "abba", config, profile=config.profile, evidence=config.evidence)
    cohorts = []
    for number in range(1, config.cohorts + 1):
        records = []
        for name in ORDER:
            plan = with_settings(config.base, config.change if name[-1] == "B" else ())
            arm = run_generate(GenerateConfig.build(plan), root=series.path / "arms" / f"c{number:02d}" / name).folder
            place = str(arm.path.relative_to(series.path))
            records.append(ArmRecord(name=name, exit_code=0, started_ns=0, duration_s=1, watch=SEEN, folder=place))
        cohorts.append(CohortRecord(number=number, arms=tuple(records)))
    write_json(series.artifacts / "cohorts.json", Series(cohorts=tuple(cohorts)).model_dump(mode="json"))
    series.finish()
    return series


def walk(disk, root, *settings):
    return run_gate(
        GATE, GATE.configure(smoke=True, settings=(*SMALL, f"envelopes=['{disk}']", *settings)), root=root, anyway=True
    )


def test_where_every_read_costs_as_much_records_apart_fail_and_the_evidence_is_there(disk, tmp_path, monkeypatch):
    monkeypatch.setattr(arms, "run_abba", run_here)
    folder = walk(disk, tmp_path / "runs", f"compare=['{SPLIT}']", "cohorts=3", "max_cohorts=3", "min_cohorts=3")
    result = folder.result
    assert (result.evidence, result.verdict.outcome) == (Evidence.EMULATED, Outcome.FAIL)
    assert result.verdict.codes == ("C.split@planted",)
    clauses = {clause.code: clause for clause in result.verdict.criteria}
    assert clauses["C.identity"].value == 0.0
    assert clauses["C.split@planted"].value < 0.8
    assert clauses["C.waves@planted"].outcome is Outcome.INCONCLUSIVE
    assert any("conditional on gate a_storage" in line for line in result.verdict.conditions)
    assert set(GATE.shown) <= set(result.tables)
    assert [row["cohorts"] for row in result.tables["comparisons"]] == ["3 of 3"]
    assert {path.stem for path in (folder.artifacts / "figures").glob("*.png")} == {
        "crossover", "overlap", "timeline", "waits", "waterfall",
    }  # fmt: skip
    assert json.loads((folder.artifacts / "timeline.json").read_text())["otherData"]["evidence"] == "emulated"
    kinds = [run.path.parent.name for run in list_runs(tmp_path / "runs")]
    assert sorted(kinds) == ["abba", "gate_c", "generate"]


@pytest.mark.soak
def test_where_all_reads_of_a_layer_arrive_at_once_waves_do_not_gain_a_quarter(disk, tmp_path, monkeypatch):
    monkeypatch.setattr(arms, "run_abba", run_here)
    at_once = json.loads(disk.read_text()) | {"latency_us": 20_000.0}
    disk.write_text(json.dumps(at_once))
    settings = (f"compare=['{WAVES}']", "cohorts=4", "max_cohorts=4", "min_wave_gain=0.25")
    verdict = walk(disk, tmp_path / "runs", *settings).result.verdict
    assert (verdict.outcome, verdict.codes) == (Outcome.FAIL, ("C.waves@planted",))
    assert "thresholds differ from the registered ones: min_wave_gain" in verdict.conditions
