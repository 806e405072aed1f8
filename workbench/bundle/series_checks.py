"""Checks of a comparison: every arm against its own folder, every cohort judged anew, the verdict derived anew."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from workbench.abba.arms import fields_of, plan_mismatch
from workbench.abba.conclusion import conclude
from workbench.abba.findings import comparison_findings
from workbench.abba.power import PowerState
from workbench.abba.records import AbbaConfig, ArmRecord, CohortRecord
from workbench.abba.runner import read_cohorts
from workbench.abba.validity import judge_series
from workbench.abba.watch import Reading, summarise
from workbench.bundle.checks import Check, failed, not_checked, ok
from workbench.bundle.run_checks import check_run, first_difference
from workbench.schema import Result, RunFolder, Verdict

_WATCHED = ("wall_s", "num_samples", "longest_gap_s", "swap_out_bytes", "memory_pressure", "other_cores", "stolen_cores")


def check_series(folder: RunFolder, result: Result) -> Iterator[Check]:
    """All checks of a comparison."""
    config = AbbaConfig.from_toml(folder.path / "config.toml")
    cohorts = read_cohorts(folder)
    outside = [arm for cohort in cohorts for arm in cohort.arms if not _is_inside(folder, arm)]
    if outside:
        yield failed("arms", f"a record names a folder outside the comparison: {outside[0].folder!r}")
        return
    for cohort in cohorts:
        for arm in cohort.arms:
            yield from _check_arm(config, folder, cohort, arm)
    yield _check_cohorts(config, cohorts)
    yield _check_findings(folder, cohorts, result)
    yield from _check_verdict(config, cohorts, folder, result)
    yield not_checked("page cache, power and thermal readings", "they were taken on the machine that ran the arms")


def _is_inside(folder: RunFolder, arm: ArmRecord) -> bool:
    return (folder.path / arm.folder).resolve().is_relative_to(folder.path.resolve())


def _check_arm(config: AbbaConfig, folder: RunFolder, cohort: CohortRecord, arm: ArmRecord) -> Iterator[Check]:
    what = f"cohort {cohort.number} arm {arm.name}"
    home = folder.path / "arms" / f"c{cohort.number:02d}" / arm.name
    yield _check_watch(what, home / "watch.json", arm)
    if not arm.folder:
        yield not_checked(what, f"the arm wrote no result: {arm.error}")
        return
    child = RunFolder(folder.path / arm.folder)
    result = child.result
    if result is None:
        yield not_checked(what, "the arm did not finish")
        return
    found = fields_of(config, child, result, {"sources": arm.identity.get("sources", "")})
    found["plan_mismatch"] = plan_mismatch(folder.artifacts / f"plan-{arm.letter}.toml", child)
    if difference := first_difference({name: getattr(arm, name) for name in found}, found):
        yield failed(f"{what}: record", difference)
    else:
        yield ok(f"{what}: record", f"{config.metric} {arm.value:.6g}" if arm.value is not None else "")
    yield from check_run(what, child, result)


def _check_watch(what: str, readings: Path, arm: ArmRecord) -> Check:
    if not readings.exists():
        return not_checked(f"{what}: watchdog", "its readings are not in the bundle")
    rows = [Reading(**row) for row in json.loads(readings.read_text())]
    found = summarise(rows, PowerState(), PowerState())
    said = {name: getattr(arm.watch, name) for name in _WATCHED}
    if difference := first_difference(said, {name: getattr(found, name) for name in _WATCHED}):
        return failed(f"{what}: watchdog", difference)
    return ok(f"{what}: watchdog", f"{len(rows)} readings")


def _check_cohorts(config: AbbaConfig, cohorts: Sequence[CohortRecord]) -> Check:
    again = judge_series(config, cohorts)
    for said, found in zip(cohorts, again, strict=True):
        if said.reasons != found.reasons:
            reasons = ["; ".join(map(str, cohort.reasons)) or "valid" for cohort in (said, found)]
            return failed(f"cohort {said.number}", f"it says {reasons[0]}, its records give {reasons[1]}")
    return ok("cohorts", f"{sum(cohort.valid for cohort in again)} of {len(again)} are valid")


def _check_findings(folder: RunFolder, cohorts: Sequence[CohortRecord], result: Result) -> Check:
    found = comparison_findings(folder, cohorts)
    if found != result.tables.get("findings", []):
        return failed(
            "detectors on the comparison", f"they find {[row['code'] for row in found]}, the result lists other findings"
        )
    return ok("detectors on the comparison", ", ".join(row["code"] for row in found) or "silent")


def _check_verdict(config: AbbaConfig, cohorts: Sequence[CohortRecord], folder: RunFolder, result: Result) -> Iterator[Check]:
    guest = folder.environment["machine"]["virtual_machine"]
    found = conclude(config, judge_series(config, cohorts), virtual_machine=guest)
    if difference := first_difference(dict(result.metrics), dict(found.metrics)):
        yield failed("metrics of the comparison", difference)
    else:
        ratio = result.metrics.get("effect/ratio")
        yield ok("metrics of the comparison", "no cohort is valid" if ratio is None else f"ratio {ratio:.4f}")
    if result.verdict is None:
        yield failed("verdict", "the result has no verdict")
        return
    if difference := first_difference(_figures(result.verdict), _figures(found.verdict)):
        yield failed("verdict", difference)
    else:
        yield ok("verdict", f"{found.verdict.outcome.value} ({', '.join(found.verdict.codes)})")
    yield _check_wording(result.verdict, found.verdict)


def _figures(verdict: Verdict) -> dict[str, Any]:
    """The verdict without its sentences, which `_check_wording` compares; of its conditions the number."""
    sentences: dict[str, Any] = {"summary": True, "conditions": True, "criteria": {"__all__": {"statement"}}}
    return verdict.model_dump(mode="json", exclude=sentences) | {"conditions": len(verdict.conditions)}


def _check_wording(stored: Verdict, again: Verdict) -> Check:
    """Compares the sentences; other wording, as of another version of the workbench, is reported as not checked."""
    if stored == again:
        return ok("wording of the verdict", "as by this workbench")
    said, drawn = stored.model_dump(mode="json"), again.model_dump(mode="json")
    return not_checked("wording of the verdict", f"other than by this workbench: {first_difference(said, drawn)}")
