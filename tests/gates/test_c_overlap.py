"""Gate C from end to end on a planted disk: slow pages, and a pipe that charges by the read."""

import json

import pytest

from workbench.abba.power import PowerState
from workbench.abba.runner import run_abba
from workbench.abba.watch import Reading, Watch
from workbench.gates import c_overlap_arms
from workbench.gates.base import run_gate
from workbench.gates.c_overlap import GATE
from workbench.gates.c_overlap_plan import EARLY, SPLIT
from workbench.schema import Evidence, Outcome, list_runs

PLANTED = {
    "name": "planted", "device": "none", "source": "a test", "latency_us": 4000.0, "stream_gbps": 1.0, "bandwidth_gbps": 1.0,
    "iops": 3000.0,
}  # fmt: skip


def still():
    """A watchdog of a machine on which nothing else happens: other tests run beside this one."""
    seconds = iter(range(1, 1_000_000))
    zeros = dict.fromkeys(("busy_s", "stolen_s", "own_s", "memory_pressure"), 0.0)
    return Watch(lambda _: Reading(t_ns=next(seconds) * 10**9, swap_out_bytes=0, **zeros), PowerState)


@pytest.fixture
def disk(mini_store, monkeypatch, tmp_path):
    """An envelope of a disk on which a page takes 4 ms and every read as long as 330 KB; arms count whatever their drift."""
    monkeypatch.setattr("workbench.abba.arms.sources_digest", lambda: "00" * 32)

    def run(config, *, root, note):
        return run_abba(config.model_copy(update={"drift_limit": 0.9}), root=root, note=note, watch=still)

    monkeypatch.setattr(c_overlap_arms, "run_abba", run)
    path = tmp_path / "planted.json"
    path.write_text(json.dumps(PLANTED))
    return path


def test_a_slow_disk_fails_the_clauses_it_breaks_and_leaves_the_evidence(disk, tmp_path):
    settings = (
        f"envelopes=['{disk}']", f"compare=['{EARLY}', '{SPLIT}']", "cohorts=2", "max_cohorts=2", "min_cohorts=2", "tokens=5",
        "warm_up_tokens=1", "orders=1", "faults=1", "tiles=[8]",
    )  # fmt: skip
    folder = run_gate(GATE, GATE.configure(smoke=True, settings=settings), root=tmp_path / "runs", anyway=True)
    result = folder.result
    assert (result.evidence, result.verdict.outcome) == (Evidence.EMULATED, Outcome.FAIL)
    assert result.verdict.codes == ("C.split@planted", "C.ple_wait@planted")
    clauses = {clause.code: clause for clause in result.verdict.criteria}
    assert clauses["C.identity"].value == 0.0
    assert clauses["C.split@planted"].value < 0.8
    assert clauses["C.ple_wait@planted"].value > 0.05
    assert clauses["C.waves@planted"].outcome is Outcome.INCONCLUSIVE
    assert any("conditional on gate a_storage" in line for line in result.verdict.conditions)
    assert set(GATE.shown) <= set(result.tables)
    assert [row["cohorts"] for row in result.tables["comparisons"]] == ["2 of 2", "2 of 2"]
    assert {path.stem for path in (folder.artifacts / "figures").glob("*.png")} == {
        "crossover", "overlap", "timeline", "waits", "waterfall",
    }  # fmt: skip
    assert json.loads((folder.artifacts / "timeline.json").read_text())["otherData"]["evidence"] == "emulated"
    kinds = [run.path.parent.name for run in list_runs(tmp_path / "runs")]
    assert sorted(kinds) == ["abba", "abba", "gate_c", "generate"]
