"""Gate C from end to end on a planted disk: slow, and with a pipe that charges by the read."""

import json

import pytest

from workbench.abba.power import PowerState
from workbench.abba.runner import run_abba
from workbench.abba.watch import Reading, Watch
from workbench.gates import c_overlap_arms
from workbench.gates.base import run_gate
from workbench.gates.c_overlap import GATE
from workbench.gates.c_overlap_plan import SPLIT, WAVES
from workbench.schema import Evidence, Outcome, list_runs

PLANTED = {
    "name": "planted", "device": "none", "source": "a test", "latency_us": 6000.0, "stream_gbps": 1.0, "bandwidth_gbps": 1.0,
    "iops": 2000.0,
}  # fmt: skip


def still():
    """A watchdog of a machine on which nothing else happens: other tests run beside this one."""
    seconds = iter(range(1, 1_000_000))
    zeros = dict.fromkeys(("busy_s", "stolen_s", "own_s", "memory_pressure"), 0.0)
    return Watch(lambda _: Reading(t_ns=next(seconds) * 10**9, swap_out_bytes=0, **zeros), PowerState)


@pytest.fixture
def disk(mini_store, monkeypatch, tmp_path):
    """An envelope of a disk on which a read takes 6 ms and ten of them 1 ms less; arms count whatever their drift."""
    monkeypatch.setattr("workbench.abba.arms.sources_digest", lambda: "00" * 32)

    def run(config, *, root, note):
        return run_abba(config.model_copy(update={"drift_limit": 0.9}), root=root, note=note, watch=still)

    monkeypatch.setattr(c_overlap_arms, "run_abba", run)
    path = tmp_path / "planted.json"
    path.write_text(json.dumps(PLANTED))
    return path


def walk(disk, root, *settings):
    small = ("warm_up_tokens=1", "tokens=4", "orders=1", "faults=1", "tiles=[8]", f"envelopes=['{disk}']", *settings)
    return run_gate(GATE, GATE.configure(smoke=True, settings=small), root=root, anyway=True)


def test_where_every_read_costs_as_much_records_apart_fail_and_the_evidence_is_there(disk, tmp_path):
    folder = walk(disk, tmp_path / "runs", f"compare=['{SPLIT}']", "cohorts=2", "max_cohorts=2", "min_cohorts=2")
    result = folder.result
    assert (result.evidence, result.verdict.outcome) == (Evidence.EMULATED, Outcome.FAIL)
    assert result.verdict.codes == ("C.split@planted",)
    clauses = {clause.code: clause for clause in result.verdict.criteria}
    assert clauses["C.identity"].value == 0.0
    assert clauses["C.split@planted"].value < 0.8
    assert clauses["C.waves@planted"].outcome is Outcome.INCONCLUSIVE
    assert any("conditional on gate a_storage" in line for line in result.verdict.conditions)
    assert set(GATE.shown) <= set(result.tables)
    assert [row["cohorts"] for row in result.tables["comparisons"]] == ["2 of 2"]
    assert {path.stem for path in (folder.artifacts / "figures").glob("*.png")} == {
        "crossover", "overlap", "timeline", "waits", "waterfall",
    }  # fmt: skip
    assert json.loads((folder.artifacts / "timeline.json").read_text())["otherData"]["evidence"] == "emulated"
    kinds = [run.path.parent.name for run in list_runs(tmp_path / "runs")]
    assert sorted(kinds) == ["abba", "gate_c", "generate"]


@pytest.mark.soak
def test_where_all_reads_of_a_layer_arrive_at_once_waves_gain_nothing(disk, tmp_path):
    settings = (f"compare=['{WAVES}']", "tokens=12", "cohorts=4", "max_cohorts=4")
    verdict = walk(disk, tmp_path / "runs", *settings).result.verdict
    assert "C.waves@planted" in verdict.codes
    assert verdict.outcome is Outcome.FAIL
