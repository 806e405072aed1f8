"""Runs a series of cohorts: plans and configuration on disk first, a durable record after each cohort, a verdict at the end.

`resume_abba` continues a series that was interrupted or killed; the cohort under way is discarded, because arms that run later
can't be paired with its earlier arms.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import tomli_w

from workbench.abba.arms import run_arm, sources_changed
from workbench.abba.conclusion import Conclusion, conclude, is_decided, is_hopeless
from workbench.abba.findings import comparison_findings
from workbench.abba.records import ORDER, AbbaConfig, ArmName, ArmRecord, Code, CohortRecord, Reason, Series
from workbench.abba.validity import judge_cohort, reference_of
from workbench.abba.watch import Watch
from workbench.config import with_settings
from workbench.errors import BadInput
from workbench.files import write_atomically
from workbench.hardware import machine
from workbench.interrupts import sigterm_as_interrupt
from workbench.progress import progress
from workbench.schema import RunFolder, Status
from workbench.schema.results import write_json

KIND = "abba"
Note = Callable[[str], None]


def run_abba(
    config: AbbaConfig,
    *,
    root: Path,
    note: Note = lambda _: None,
    watch: Callable[[], Watch] = Watch,
    command: Sequence[str] | None = None,
) -> RunFolder:
    """Runs a new series with its result folder under `root`; returns the folder with the verdict.

    KeyboardInterrupt and SIGTERM end the arm that runs, discard its cohort, save the rest and raise KeyboardInterrupt.
    """
    folder = RunFolder.create(
        root, KIND, config, profile=config.profile, evidence=config.evidence, command=command, tags=_tags(config)
    )
    for letter, settings in (("A", ()), ("B", config.change)):
        write_atomically(_plan(folder, letter), tomli_w.dumps(with_settings(config.base, settings)).encode())
    _save(folder, [])
    return _Runner(config, folder, [], note, watch).run()


def resume_abba(folder: RunFolder, *, note: Note = lambda _: None, watch: Callable[[], Watch] = Watch) -> RunFolder:
    """Continues a series that was interrupted or whose process is gone.

    Raises BadInput on a series in another state, and when the package was edited since its first arm.
    """
    status = folder.status
    if status not in (Status.INTERRUPTED, Status.ABANDONED):
        raise BadInput(
            f"{folder.path} is {status.value}: only an interrupted series can be resumed, and no verdict is ever overwritten"
        )
    config = AbbaConfig.from_toml(folder.path / "config.toml")
    cohorts = list(read_cohorts(folder))
    if (first := reference_of(config, cohorts)) and sources_changed(first):
        raise BadInput(f"workbench was edited since the first arm of {folder.path.name}: start a new comparison")
    known = {cohort.number for cohort in cohorts}
    lost = [number for number in _started(folder) if number not in known]
    cohorts += [_interrupted(number, []) for number in lost]
    folder.reopen()
    _save(folder, cohorts)
    return _Runner(config, folder, cohorts, note, watch).run()


def read_cohorts(folder: RunFolder) -> tuple[CohortRecord, ...]:
    """The cohorts of a series, finished or not."""
    return Series.model_validate_json((folder.artifacts / "cohorts.json").read_text()).cohorts


class _Runner:
    def __init__(
        self, config: AbbaConfig, folder: RunFolder, cohorts: list[CohortRecord], note: Note, watch: Callable[[], Watch]
    ) -> None:
        self._config, self._folder, self._cohorts, self._note, self._watch = config, folder, cohorts, note, watch
        self._arm_s: list[float] = []

    def run(self) -> RunFolder:
        with self._folder, sigterm_as_interrupt(), progress("cohorts", self._config.cohorts) as advance:
            advance(sum(cohort.valid for cohort in self._cohorts))
            try:
                while not self._finished():
                    cohort = self._run_cohort()
                    self._keep(cohort)
                    advance(int(cohort.valid))
            except KeyboardInterrupt:
                self._finish(Status.INTERRUPTED)
                self._note(f"interrupted; to resume: workbench abba --resume {self._folder.path.name}")
                raise
            self._finish(Status.FINISHED)
        return self._folder

    def _finished(self) -> bool:
        if (first := reference_of(self._config, self._cohorts)) and sources_changed(first):
            return True
        complete = sum(len(cohort.arms) == len(ORDER) for cohort in self._cohorts)
        return complete >= self._config.most_cohorts or is_decided(self._config, self._cohorts) or is_hopeless(self._cohorts)

    def _run_cohort(self) -> CohortRecord:
        number = max((cohort.number for cohort in self._cohorts), default=0) + 1
        arms: list[ArmRecord] = []
        try:
            for name in ORDER:
                arms.append(self._run_arm(number, name))
        except KeyboardInterrupt:
            self._keep(_interrupted(number, arms))
            raise
        return judge_cohort(self._config, number, arms, reference_of(self._config, self._cohorts))

    def _run_arm(self, number: int, name: ArmName) -> ArmRecord:
        start = time.monotonic()
        path = self._folder.path
        home = path / "arms" / f"c{number:02d}" / name
        plan = _plan(self._folder, name[-1])
        arm = run_arm(self._config, name, plan=plan, home=home, series=path, watch=self._watch)
        self._arm_s.append(time.monotonic() - start)
        if len(self._arm_s) == 1:
            self._note(f"an arm with its warm-up takes {self._arm_s[0]:.1f} s: {self._eta()}")
        return arm

    def _keep(self, cohort: CohortRecord) -> None:
        self._cohorts.append(cohort)
        _save(self._folder, self._cohorts)
        why = "; ".join(str(reason) for reason in cohort.reasons)
        self._note(f"cohort {cohort.number} is {f'invalid: {why}' if why else 'valid'}; {self._eta()}")

    def _eta(self) -> str:
        missing = self._config.cohorts - sum(cohort.valid for cohort in self._cohorts)
        if self._finished():
            return "the series ends here"
        if not self._arm_s:
            return f"{missing} more valid cohorts are needed"
        seconds = missing * len(ORDER) * sum(self._arm_s) / len(self._arm_s)
        return f"{missing} more valid cohorts take at least {seconds / 60:.1f} min"

    def _finish(self, status: Status) -> None:
        _log_arms(self._folder, self._cohorts)
        result: Conclusion = conclude(self._config, self._cohorts, virtual_machine=machine().virtual_machine)
        verdict = result.verdict if status is Status.FINISHED else None
        self._folder.finish(
            status=status,
            metrics=result.metrics,
            tables=result.tables | {"findings": comparison_findings(self._folder, self._cohorts)},
            verdict=verdict,
            tags={"claim": result.claim.value} if verdict else {},
            error=None if verdict else "interrupted; the cohort under way was discarded",
        )


def _tags(config: AbbaConfig) -> dict[str, str]:
    return {
        "design": "ABBA",
        "metric": config.metric,
        "change": ", ".join(config.change) or "none (A against A)",
        "cache_state": config.cache_state.value,
        "question": config.question[:12],
    }


def _plan(folder: RunFolder, letter: str) -> Path:
    return folder.artifacts / f"plan-{letter}.toml"


def _save(folder: RunFolder, cohorts: Sequence[CohortRecord]) -> None:
    write_json(folder.artifacts / "cohorts.json", Series(cohorts=tuple(cohorts)).model_dump(mode="json"))


def _started(folder: RunFolder) -> list[int]:
    return sorted(int(path.name[1:]) for path in (folder.path / "arms").glob("c*"))


def _interrupted(number: int, arms: Sequence[ArmRecord]) -> CohortRecord:
    reason = Reason(code=Code.INTERRUPTED, where="cohort", detail=f"interrupted after {len(arms)} of 4 arms")
    return CohortRecord(number=number, arms=tuple(arms), reasons=(reason,))


def _log_arms(folder: RunFolder, cohorts: Sequence[CohortRecord]) -> None:
    """Logs one mark per arm in the series' own events; its value is the compared metric."""
    for cohort in cohorts:
        for arm in cohort.arms:
            name = f"c{cohort.number:02d}-{arm.name}"
            folder.events.add(arm.started_ns, "mark", name=name, value=arm.value, duration_ns=int(arm.duration_s * 1e9))
