"""Series of planted arms, each a real process: verdicts, what is kept, and what survives interruption and SIGKILL."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest

from workbench.abba.records import ORDER, Code
from workbench.abba.runner import read_cohorts, resume_abba, run_abba
from workbench.abba.watch import Watch
from workbench.errors import BadInput
from workbench.schema import Outcome, RunFolder, Status, list_runs

SERIES = """
import itertools, sys
from pathlib import Path
from workbench.abba.records import AbbaConfig
from workbench.abba.runner import run_abba
from workbench.abba.power import PowerState
from workbench.abba.watch import Reading, Watch

count = itertools.count(1)

def still(session):
    zeros = dict.fromkeys(("busy_s", "stolen_s", "own_s", "memory_pressure"), 0.0)
    return Reading(t_ns=next(count) * 10**9, swap_out_bytes=0, **zeros)

config = AbbaConfig.from_toml(Path(sys.argv[1]))
try:
    note = lambda line: print(line, file=sys.stderr)
    run_abba(config, root=Path(sys.argv[2]), note=note, watch=lambda: Watch(still, PowerState))
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_a_cohort_keeps_its_arms_and_discards_its_warm_ups(tmp_path, configure, quiet):
    notes = []
    folder = run_abba(configure(change=["value=20.0"], cohorts=1, warmups=1), root=tmp_path, note=notes.append, watch=quiet)
    assert (folder.status, folder.result.verdict.codes) == (Status.FINISHED, ("abba.indicative",))
    (cohort,) = read_cohorts(folder)
    assert [arm.name for arm in cohort.arms] == list(ORDER)
    for arm in cohort.arms:
        child = RunFolder(folder.path / arm.folder)
        assert child.status is Status.FINISHED
        assert child.result.metrics["e2e/decode_tps"] == arm.value
        assert json.loads((folder.path / "arms" / "c01" / arm.name / "watch.json").read_text())
    assert not list(folder.path.rglob("warm-up*"))
    assert [run.path for run in list_runs(tmp_path)] == [folder.path], "arms are children, not runs of their own"
    assert "at least" in notes[0]
    assert "the series ends here" in notes[-1]


def test_configuration_and_plans_lie_there_before_the_first_arm(tmp_path, configure, quiet):
    config = configure(change=["behaviour='crash'"], max_cohorts=1, cohorts=1)
    folder = run_abba(config, root=tmp_path, watch=quiet)
    first = read_cohorts(folder)[0].arms[0]
    for name in ("config.toml", "environment.json", "artifacts/plan-A.toml", "artifacts/plan-B.toml"):
        assert (folder.path / name).stat().st_mtime <= time.time() - (time.monotonic_ns() - first.started_ns) / 1e9
    assert folder.environment["config_digest"] == config.digest


def test_a_planted_slowdown_ends_early_as_a_failure(tmp_path, configure, quiet):
    config = configure(change=["value=9.0"], cohorts=6, max_cohorts=6)
    result = run_abba(config, root=tmp_path, watch=quiet).result
    assert result.verdict.outcome is Outcome.FAIL
    assert result.verdict.codes == ("abba.worse",)
    assert result.verdict.enables == ("drop value=9.0 (profile mini, cold_process, physical)",)
    assert result.metrics["effect/cohorts_run"] == 4
    assert result.metrics["effect/ratio_high"] < 0.95


@pytest.mark.parametrize(
    ("change", "settings", "code", "error"),
    [
        ("behaviour='crash'", {}, Code.ARM_FAILED, "the disk is on fire"),
        ("behaviour='killed'", {}, Code.ARM_KILLED, "signal 9"),
        ("behaviour='unfinished'", {}, Code.ARM_FAILED, "no result"),
        ("sleep_s=60", {"arm_timeout_s": 0.5}, Code.ARM_TIMED_OUT, "killed after"),
        ("tags.routing_digest='44'", {}, Code.ROUTING_DIFFERS, "routing_digest is 44"),
    ],
)
def test_a_planted_arm_spoils_its_cohort(tmp_path, configure, quiet, change, settings, code, error):
    config = configure(change=[change], cohorts=1, max_cohorts=1, **settings)
    folder = run_abba(config, root=tmp_path, watch=quiet)
    (cohort,) = read_cohorts(folder)
    assert cohort.reasons[0].code is code
    assert error in cohort.reasons[0].detail
    assert folder.result.verdict.outcome is Outcome.INCONCLUSIVE
    assert folder.result.verdict.codes == ("abba.no_valid_cohort",)
    assert [row["counts"] for row in folder.result.tables["cohorts"]] == [False]


@pytest.mark.parametrize(("behaviour", "tried"), [("crash", 2), ("killed", 3)])
def test_what_no_repeat_mends_is_not_repeated(tmp_path, configure, quiet, behaviour, tried):
    config = configure(change=[f"behaviour='{behaviour}'"], cohorts=1, max_cohorts=3)
    assert len(read_cohorts(run_abba(config, root=tmp_path, watch=quiet))) == tried


def test_an_edited_package_ends_the_series(tmp_path, configure, quiet, monkeypatch):
    digests = iter(["00"] * 5)
    monkeypatch.setattr("workbench.abba.arms.sources_digest", lambda: next(digests, "edited"))
    folder = run_abba(configure(), root=tmp_path, watch=quiet)
    assert len(read_cohorts(folder)) == 1
    assert folder.result.verdict.codes == ("abba.indicative",)


def test_an_interrupted_series_goes_on_unless_the_package_was_edited(tmp_path, configure, quiet, monkeypatch):
    watches = iter([quiet] * 4)

    def watch():
        if (make := next(watches, None)) is None:
            raise KeyboardInterrupt
        return make()

    with pytest.raises(KeyboardInterrupt):
        run_abba(configure(), root=tmp_path, watch=watch)
    (folder,) = list_runs(tmp_path)
    monkeypatch.setattr("workbench.abba.arms.sources_digest", lambda: "edited")
    with pytest.raises(BadInput, match="edited since the first arm"):
        resume_abba(folder, watch=quiet)
    assert folder.status is Status.INTERRUPTED
    monkeypatch.setattr("workbench.abba.arms.sources_digest", lambda: "00" * 32)
    assert [cohort.valid for cohort in read_cohorts(resume_abba(folder, watch=quiet))] == [True, False, True, True, True]


def test_a_competitor_is_seen_by_the_real_watchdog(tmp_path, configure):
    busy = subprocess.Popen([sys.executable, "-I", "-S", "-c", "while True: pass"])
    try:
        config = configure(cohorts=1, max_cohorts=1, base={"sleep_s": 0.7})
        (cohort,) = read_cohorts(run_abba(config, root=tmp_path, watch=Watch))
    finally:
        busy.kill()
        busy.wait()
    assert Code.COMPETITOR in {reason.code for reason in cohort.reasons}
    assert all(arm.watch.other_cores > 0.1 for arm in cohort.arms)
    assert any("python" in arm.watch.busiest for arm in cohort.arms)


def start_series(tmp_path, config):
    (tmp_path / "abba.toml").write_text(config.to_toml())
    words = [sys.executable, "-c", SERIES, str(tmp_path / "abba.toml"), str(tmp_path / "runs")]
    return subprocess.Popen(words, stderr=subprocess.PIPE, text=True)


def wait_for(condition, what):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def arm_of(pid_file):
    wait_for(lambda: pid_file.exists() and pid_file.read_text(), "no arm started")
    return psutil.Process(int(pid_file.read_text()))


def gone(process):
    with suppress(psutil.NoSuchProcess):
        return process.status() == psutil.STATUS_ZOMBIE
    return True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_series_that_is_ended_says_so_and_goes_on(tmp_path, configure, quiet, number):
    pid_file = tmp_path / "pid"
    config = configure(base={"sleep_s": 30, "pid_file": str(pid_file)}, cohorts=1, max_cohorts=2)
    series = start_series(tmp_path, config)
    arm = arm_of(pid_file)
    series.send_signal(number)
    said = series.communicate(timeout=30)[1]
    wait_for(lambda: gone(arm), "the arm outlived its series")
    (folder,) = list_runs(tmp_path / "runs")
    expected = Status.ABANDONED if number == signal.SIGKILL else Status.INTERRUPTED
    assert folder.status is expected
    if number != signal.SIGKILL:
        assert series.returncode == 130
        assert f"workbench abba --resume {folder.path.name}" in said
        assert folder.result.verdict is None
    # the arm would sleep again: the resumed series gets a plan without the sleep, as nothing else may change
    for plan in folder.artifacts.glob("plan-*.toml"):
        plan.write_text(plan.read_text().replace("sleep_s = 30", "sleep_s = 0"))
    resumed = resume_abba(folder, watch=quiet)
    assert resumed.path == folder.path
    assert resumed.status is Status.FINISHED
    first, second = read_cohorts(resumed)
    assert [reason.code for reason in first.reasons] == [Code.INTERRUPTED]
    assert second.valid
    assert len(folder.environment["earlier_pids"]) == 1
    with pytest.raises(BadInput, match="no verdict is ever overwritten"):
        resume_abba(folder)


def test_a_killed_arm_leaves_nothing_running(tmp_path, configure):
    pid_file = tmp_path / "pid"
    config = configure(base={"sleep_s": 30, "pid_file": str(pid_file)}, cohorts=1, max_cohorts=1, arm_timeout_s=60.0)
    series = start_series(tmp_path, config)
    for _ in ORDER:
        arm = arm_of(pid_file)
        pid_file.unlink()
        os.kill(arm.pid, signal.SIGKILL)
    series.communicate(timeout=30)
    (folder,) = list_runs(tmp_path / "runs")
    assert folder.status is Status.FINISHED
    (cohort,) = read_cohorts(folder)
    assert {reason.code for reason in cohort.reasons} == {Code.ARM_KILLED}
    assert json.loads((folder.path / "result.json").read_text())["verdict"]["outcome"] == "inconclusive"
