"""Series of comparisons: finished ones are reused after an interruption, and their arms are tabulated."""

import json

import pytest

from workbench.abba.records import ORDER, ArmRecord, Code, CohortRecord, Reason, Series, WatchRecord
from workbench.gates.c_overlap import OverlapConfig
from workbench.gates.c_overlap.plan import EARLY, WAVES, comparisons
from workbench.gates.shared import arms as arms_module
from workbench.gates.shared.arms import SERIES_NAME, run_jobs, series_arms
from workbench.gates.shared.comparisons import jobs
from workbench.schema import Evidence, RunFolder, Status
from workbench.schema.results import write_json

MS = 1_000_000
WATCH = WatchRecord(wall_s=1, num_samples=2, longest_gap_s=1, swap_out_bytes=0, memory_pressure=0, other_cores=0, stolen_cores=0)
TWO = OverlapConfig(envelopes=("usb-10gbps",), compare=(WAVES, EARLY))


def plant_series(root, spoiled=()):
    """A finished comparison of one cohort: B's tokens take 8 ms, A's 10."""
    series = RunFolder.create(root, "abba", TWO, profile="mini", evidence=Evidence.EMULATED)
    arms = []
    for name in ORDER:
        home = RunFolder.create(series.path / "arms" / name, "generate", TWO, profile="mini", evidence=Evidence.EMULATED)
        for end in range(3):
            home.events.add(
                end * (8 if name[-1] == "B" else 10) * MS, "token", phase="decode", duration_ns=MS, committed_tokens=1
            )
        home.finish()
        arms.append(
            ArmRecord(
                name=name, exit_code=0, started_ns=0, duration_s=1, watch=WATCH, folder=str(home.path.relative_to(series.path))
            )
        )
    cohort = CohortRecord(number=1, arms=tuple(arms), reasons=tuple(spoiled))
    write_json(series.artifacts / "cohorts.json", Series(cohorts=(cohort,)).model_dump(mode="json"))
    series.finish()
    return series


@pytest.fixture
def planted(monkeypatch):
    """Comparisons without arms; returns the list of those that were run. `stop` of them are interrupted first."""
    ran = []

    def plan(config, job):
        return job

    def run(job, *, root):
        ran.append(job.comparison.name)
        if job.comparison.name == EARLY and ran.count(EARLY) == 1:
            raise KeyboardInterrupt
        return plant_series(root)

    monkeypatch.setattr(arms_module, "abba_config", plan)
    monkeypatch.setattr(arms_module, "run_abba", run)
    return ran


def gate_folder(root, stage="abc"):
    return RunFolder.create(root, "gate_c", TWO, profile="mini", evidence=Evidence.EMULATED, tags={"stage": stage})


def test_an_interrupted_gate_goes_on_behind_its_last_finished_comparison(planted, tmp_path):
    todo = jobs(TWO, comparisons(TWO))
    with pytest.raises(KeyboardInterrupt), gate_folder(tmp_path) as first:
        run_jobs(TWO, first, todo, lambda _: None)
    assert first.status is Status.INTERRUPTED
    again = gate_folder(tmp_path)
    arms = run_jobs(TWO, again, todo, lambda _: None)
    assert planted == [WAVES, EARLY, EARLY]
    assert arms.group_by("comparison", maintain_order=True).len().rows() == [(WAVES, 4), (EARLY, 4)]
    named = json.loads((again.artifacts / SERIES_NAME).read_text())
    assert list(named) == [f"{name} on usb-10gbps" for name in (WAVES, EARLY)]
    assert json.loads((first.artifacts / SERIES_NAME).read_text()).items() <= named.items()


@pytest.mark.parametrize("stage", ["another", "abc"])
def test_only_an_unfinished_run_of_the_same_stage_is_taken_over(planted, tmp_path, stage):
    todo = jobs(TWO, comparisons(TWO))[:1]
    with gate_folder(tmp_path) as first:
        run_jobs(TWO, first, todo, lambda _: None)
        first.finish(status=Status.FINISHED if stage == "abc" else Status.INTERRUPTED)
    run_jobs(TWO, gate_folder(tmp_path, stage), todo, lambda _: None)
    assert planted == [WAVES, WAVES]


def test_a_run_that_came_to_its_end_leaves_nothing_to_take_over(planted, tmp_path):
    todo = jobs(TWO, comparisons(TWO))[:1]
    for status in (Status.INTERRUPTED, Status.FINISHED, Status.FINISHED):
        with gate_folder(tmp_path) as folder:
            run_jobs(TWO, folder, todo, lambda _: None)
            folder.finish(status=status)
    assert planted == [WAVES, WAVES], "the second took the first's, the third measures anew"


def test_arms_are_measured_from_their_events_and_those_without_any_are_kept(tmp_path):
    job = jobs(TWO, comparisons(TWO))[0]
    reasons = (Reason(code=Code.STATE_DIFFERS, where="2B", detail="x"), Reason(code=Code.COMPETITOR, where="3B", detail="y"))
    series = plant_series(tmp_path, reasons)
    arms = series_arms(job, series.path)
    assert arms.select("disk", "comparison", "position", "arm", "token_ms").rows() == [
        ("usb-10gbps", WAVES, position, arm, pytest.approx(took))
        for position, (arm, took) in enumerate((("A", 10.0), ("B", 8.0), ("B", 8.0), ("A", 10.0)), start=1)
    ]
    assert arms["differs"].all()
    assert not arms["counts"].any()
    assert set(arms["codes"]) == {"competitor, state_differs"}
    events = series.path / arms["folder"][1] / "events.parquet"
    events.unlink()
    assert series_arms(job, series.path)["token_ms"].is_null().to_list() == [False, True, False, False]
