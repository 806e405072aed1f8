"""Runs a gate's comparisons and tabulates their arms; a gate that was interrupted reuses the comparisons it had finished."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from workbench.abba.records import Code, CohortRecord
from workbench.abba.runner import read_cohorts, run_abba
from workbench.abba.validity import codes
from workbench.analysis.overlap import DECODE_SCHEMA, decode_measures
from workbench.gates.shared.comparisons import Job, abba_config
from workbench.gates.shared.config import ComparisonConfig, disk_words
from workbench.progress import say
from workbench.schema import RunFolder, Status, list_runs, read_events
from workbench.schema.results import write_json

SERIES_NAME = "series.json"
ARM_SCHEMA: dict[str, Any] = {
    "disk": pl.String,
    "comparison": pl.String,
    "cohort": pl.Int32,
    "position": pl.Int32,
    "arm": pl.String,
    # the cohort is valid
    "counts": pl.Boolean,
    # outputs, states or routes of the cohort's arms differ
    "differs": pl.Boolean,
    # why the cohort is not valid
    "codes": pl.String,
    "folder": pl.String,
    **DECODE_SCHEMA,
}
"""Columns of the table of arms."""
_DIFFERS = {Code.OUTPUT_DIFFERS, Code.STATE_DIFFERS, Code.ROUTING_DIFFERS}


def run_jobs(config: ComparisonConfig, folder: RunFolder, jobs: Sequence[Job], note: Callable[[str], None] = say) -> pl.DataFrame:
    """Runs the jobs that no earlier run had finished, one after the other, and returns all arms in `ARM_SCHEMA`.

    Args:
        config: the gate's settings.
        folder: the gate's run; its `artifacts/series.json` names each job's series folder as soon as the job is finished.
        jobs: comparisons on disks.
        note: gets one line before and one after each job; by default it goes to stderr.
    """
    root = folder.path.parent.parent
    done = _finished_before(folder)
    for number, job in enumerate(jobs, start=1):
        if job.words not in done:
            note(f"{job.words} ({number} of {len(jobs)})")
            series = run_abba(abba_config(config, job), root=root)
            note(_outcome(read_cohorts(series)))
            done[job.words] = series.path.relative_to(root).as_posix()
        write_json(folder.artifacts / SERIES_NAME, done)
    return pl.concat([pl.DataFrame(schema=ARM_SCHEMA), *(series_arms(job, root / done[job.words]) for job in jobs)])


def _outcome(cohorts: Sequence[CohortRecord]) -> str:
    """How many cohorts are valid, and for which reasons the others are not."""
    why = ", ".join(f"{code.value} {count}" for code, count in codes(cohorts).items())
    return f"{sum(cohort.valid for cohort in cohorts)} of {len(cohorts)} cohorts are valid" + (
        f" (not valid: {why})" if why else ""
    )


def _finished_before(folder: RunFolder) -> dict[str, str]:
    """Series folders, by `Job.words`, of jobs that this stage's latest other run finished; empty if that run itself finished."""
    about = folder.environment
    stage = about["tags"].get("stage")
    root = folder.path.parent.parent
    runs = [run for run in list_runs(root, about["kind"]) if run.path != folder.path]
    unfinished = (Status.INTERRUPTED, Status.ABANDONED, Status.FAILED)
    newest = next((run for run in reversed(runs) if run.environment["tags"].get("stage") == stage), None)
    path = newest.artifacts / SERIES_NAME if newest is not None and newest.status in unfinished else None
    done = json.loads(path.read_text()) if path is not None and path.exists() else {}
    return {words: place for words, place in done.items() if (root / place).is_dir()}


def series_arms(job: Job, path: Path) -> pl.DataFrame:
    """Every arm of a job's series at `path`, in `ARM_SCHEMA`, arms of invalid cohorts included."""
    series = RunFolder(path)
    rows = [row for cohort in read_cohorts(series) for row in _cohort_rows(series, cohort)]
    shared = {"disk": disk_words(job.disk), "comparison": job.comparison.name}
    return pl.DataFrame([shared | row for row in rows], schema=ARM_SCHEMA)


def _cohort_rows(series: RunFolder, cohort: CohortRecord) -> list[dict[str, Any]]:
    shared = {
        "cohort": cohort.number,
        "counts": cohort.valid,
        "differs": any(reason.code in _DIFFERS for reason in cohort.reasons),
        "codes": ", ".join(sorted({reason.code.value for reason in cohort.reasons})),
    }
    return [
        {**shared, "position": position, "arm": arm.letter, "folder": arm.folder, **_measures(series.path / arm.folder)}
        for position, arm in enumerate(cohort.arms, start=1)
    ]


def _measures(folder: Path) -> Mapping[str, float]:
    """`decode_measures` of an arm's events; empty for an arm that failed before it wrote any."""
    path = folder / "events.parquet"
    return decode_measures(read_events(path)) if path.is_file() else {}
