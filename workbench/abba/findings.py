"""Runs the detectors on a comparison, with the events of an A arm as the control of the B arm beside it."""

from collections.abc import Sequence

from workbench.abba.records import ArmRecord, CohortRecord
from workbench.analysis.detectors import run_detectors
from workbench.schema import RunFolder, read_events


def comparison_findings(series: RunFolder, cohorts: Sequence[CohortRecord]) -> list[dict[str, str]]:
    """Findings on the B arms of the first valid cohort as table rows; the control is the A arm next to each in run order."""
    cohort = next((cohort for cohort in cohorts if cohort.valid), None)
    if cohort is None:
        return []
    first, second, third, last = cohort.arms
    return [*_against(series, cohort, second, first), *_against(series, cohort, third, last)]


def _against(series: RunFolder, cohort: CohortRecord, arm: ArmRecord, control: ArmRecord) -> list[dict[str, str]]:
    own, other = (RunFolder(series.path / record.folder) for record in (arm, control))
    result = own.result
    if result is None:
        return []
    events, beside = (read_events(folder.path / "events.parquet") for folder in (own, other))
    found = run_detectors(events, result.metrics, control=beside)
    return [{"arm": f"c{cohort.number:02d}-{arm.name}"} | finding.row() for finding in found]
