"""Gate C's parts without its runs: plans, taking over what was finished, reading arms, checking identity."""

import json

import pytest

from workbench.abba.records import ORDER, ArmRecord, Code, CohortRecord, Reason, Series, WatchRecord
from workbench.errors import BadInput
from workbench.gates.c_overlap import arms as overlap_arms
from workbench.gates.c_overlap import identity as overlap_identity
from workbench.gates.c_overlap.arms import SERIES_NAME, run_jobs, series_arms
from workbench.gates.c_overlap.config import OverlapConfig
from workbench.gates.c_overlap.identity import check_identity
from workbench.gates.c_overlap.modes import modes_profile
from workbench.gates.c_overlap.plan import EARLY, WAVES, Job, abba_config, comparisons, jobs
from workbench.gates.c_overlap.showcase import too_slow
from workbench.loading.transfer import RequestFailed
from workbench.readers import FaultKind
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

    monkeypatch.setattr(overlap_arms, "abba_config", plan)
    monkeypatch.setattr(overlap_arms, "run_abba", run)
    return ran


def gate_folder(root, stage="abc"):
    return RunFolder.create(root, "gate_c", TWO, profile="mini", evidence=Evidence.EMULATED, tags={"stage": stage})


def test_an_interrupted_gate_goes_on_behind_its_last_finished_comparison(planted, tmp_path):
    todo = jobs(TWO)
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
    todo = jobs(TWO)[:1]
    with gate_folder(tmp_path) as first:
        run_jobs(TWO, first, todo, lambda _: None)
        first.finish(status=Status.FINISHED if stage == "abc" else Status.INTERRUPTED)
    run_jobs(TWO, gate_folder(tmp_path, stage), todo, lambda _: None)
    assert planted == [WAVES, WAVES]


def test_a_run_that_came_to_its_end_leaves_nothing_to_take_over(planted, tmp_path):
    todo = jobs(TWO)[:1]
    for status in (Status.INTERRUPTED, Status.FINISHED, Status.FINISHED):
        with gate_folder(tmp_path) as folder:
            run_jobs(TWO, folder, todo, lambda _: None)
            folder.finish(status=status)
    assert planted == [WAVES, WAVES], "the second took the first's, the third measures anew"


def test_arms_are_measured_from_their_events_and_those_without_any_are_kept(tmp_path):
    job = jobs(TWO)[0]
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


def test_a_plan_differs_from_the_defaults_by_its_setting_its_disk_and_a_small_cache(mini_store):
    every = {job.comparison.name: abba_config(OverlapConfig(), job) for job in jobs(OverlapConfig())}
    waves = every[WAVES]
    runtime = waves.base["runtime"]
    assert (runtime["wave"], waves.change) == ("barrier", ("runtime.wave=1",))
    assert (waves.evidence, waves.profile, waves.base["bandwidth_gbps"]) == (Evidence.EMULATED, "mini", 0.0125)
    assert (waves.cohorts, waves.max_cohorts, waves.warmups, waves.cache_state) == (4, 6, 0, "warm_store")
    assert runtime["uncached"] is False
    assert waves.base["warm_up_tokens"] > 0
    assert every["split records"].change == ("runtime.split_components=true",)
    assert every["next layer"].base["runtime"]["predictor"] == "nothing"
    assert every["next layer"].cohorts == 1
    assert {config.base["runtime"]["cache_bytes"] for config in every.values()} == {runtime["cache_bytes"]}
    physical = OverlapConfig(envelopes=("",), profile="mini")
    cold = abba_config(physical, jobs(physical)[0])
    assert (cold.evidence, cold.cache_state, cold.base["runtime"]["uncached"]) == (Evidence.PHYSICAL, "cold_store", True)


def test_an_unknown_comparison_is_named():
    with pytest.raises(BadInput, match="no comparison 'wave'"):
        comparisons(OverlapConfig(compare=("wave",)))


def test_a_job_says_what_it_compares_and_where():
    job = jobs(OverlapConfig(envelopes=("/some/where/slow.json",), compare=(WAVES,)))[0]
    assert (job.words, Job(disk="", comparison=job.comparison).words) == ("waves on slow", "waves on this disk")


@pytest.fixture
def decoded(mini_store, monkeypatch):
    """Runs without a model: `decoded["wrong"]` says whose digests differ, by the settings and faults it is given."""
    seen = {"runs": [], "wrong": lambda settings, reads: False}

    def run(config, settings, prompt, fault_of):
        kinds = [fault.kind.value for read in range(40) if (fault := fault_of(read)) is not None]
        seen["runs"].append((settings, kinds))
        if kinds == ["hang"]:
            raise RequestFailed("given up")
        return ("wrong" if seen["wrong"](settings, kinds) else "state", "routing")

    monkeypatch.setattr(overlap_identity, "_run_streamed", run)
    monkeypatch.setattr(overlap_identity, "_reference", lambda *_: ("state", "routing"))
    return seen


def test_identity_tries_every_width_order_and_fault_and_finds_the_one_that_differs(decoded):
    decoded["wrong"] = lambda settings, kinds: settings["wave"] == 2 and not kinds and settings["split_components"]
    rows = check_identity(OverlapConfig(orders=3, faults=7))
    assert rows.group_by("kind", maintain_order=True).len().rows() == [("setting", 16), ("order", 3), ("fault", 7)]
    wrong = rows.filter(~rows["identical"])
    assert wrong.select("kind", "case", "error").rows() == [
        ("setting", "wave 2, split_components True", ""), ("fault", wrong["case"][1], "given up"),
    ]  # fmt: skip
    assert wrong["case"][1].startswith("hang at read")
    orders = [kinds for _, kinds in decoded["runs"] if len(kinds) > 1]
    assert [set(kinds) for kinds in orders] == [{"delay"}] * 3


def test_faults_reach_as_far_as_reads_do_whether_records_are_whole_or_apart():
    kinds = len(FaultKind)
    cases = list(overlap_identity._faults(OverlapConfig(faults=2 * kinds), {False: 100, True: 1000}))
    places = [(case.settings["split_components"], int(case.words.split()[-1])) for case in cases]
    assert [split for split, _ in places] == [False] * kinds + [True] * kinds
    assert max(at for split, at in places if not split) < 100
    assert min(at for split, at in places if split) == 500
    assert max(at for split, at in places if split) > 900


def test_hits_are_resolved_on_the_device_only_where_records_are_small():
    assert "misses read back" in [each.name for each in comparisons(OverlapConfig())]
    assert "misses read back" not in [each.name for each in comparisons(OverlapConfig(profile="flash-next"))]


def test_mini_borrows_a_layer_of_slice_where_there_is_one(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path))
    monkeypatch.delenv("WORKBENCH_STORE", raising=False)
    assert modes_profile(OverlapConfig()) == "mini"
    manifest = tmp_path / "data" / "stores" / "slice" / "manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.touch()
    assert modes_profile(OverlapConfig()) == "slice"
    assert modes_profile(OverlapConfig(smoke=True)) == "mini"
    assert modes_profile(OverlapConfig(profile="flash-next")) == "flash-next"


def test_a_disk_that_this_machine_can_not_stand_for_is_named():
    assert too_slow("", {}) == ""
    assert too_slow("usb-10gbps", {"overdue_share": "0.0400"}) == ""
    assert too_slow("usb-10gbps", {"overdue_share": "0.4000"}).startswith("usb-10gbps is emulated too slowly: 40%")
