"""Series of comparisons: finished ones are reused after an interruption, and their arms are tabulated."""

import json

import pytest

from workbench.abba.records import Code, Reason
from workbench.gates.c_overlap import OverlapConfig
from workbench.gates.c_overlap.plan import EARLY, WAVES, comparisons
from workbench.gates.shared import arms as arms_module
from workbench.gates.shared.arms import SERIES_NAME, run_jobs, series_arms
from workbench.gates.shared.comparisons import jobs
from workbench.schema import Evidence, RunFolder, Status

TWO = OverlapConfig(envelopes=("usb-10gbps",), compare=(WAVES, EARLY))


@pytest.fixture
def planted(monkeypatch, plant_series):
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


def test_arms_are_measured_from_their_events_and_those_without_any_are_kept(tmp_path, plant_series):
    job = jobs(TWO, comparisons(TWO))[0]
    reasons = (Reason(code=Code.STATE_DIFFERS, where="2B", detail="x"), Reason(code=Code.COMPETITOR, where="3B", detail="y"))
    series = plant_series(tmp_path, spoiled=reasons)
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
