"""Tables and figures of compared decode runs, for people."""

import math
from collections.abc import Sequence
from typing import Any

import polars as pl

from workbench.analysis.overlap import DECODE_SCHEMA
from workbench.gates.shared import intervals
from workbench.gates.shared.comparisons import Job
from workbench.gates.shared.config import ComparisonConfig, disk_words

_MEASURES = tuple(DECODE_SCHEMA)
_SIDE_BY_SIDE = {
    "token_ms": "token ms",
    "expert_wait_ms": "record wait ms",
    "ple_wait_ms": "page wait ms",
    "readback_ms": "read-back ms",
    "read_gbps": "records GB/s",
}


def arm_means(arms: pl.DataFrame, jobs: Sequence[Job]) -> pl.DataFrame:
    """One row per comparison, disk and arm, in the order of the jobs: means over valid cohorts, over all where none is valid."""
    judged = arms.with_columns(some=pl.col("counts").any().over("disk", "comparison"))
    taken = judged.filter(pl.col("counts") | ~pl.col("some")).group_by("disk", "comparison", "arm")
    counted = taken.agg(pl.col(_MEASURES).mean().fill_nan(None), some=pl.col("some").first())
    order = pl.DataFrame(
        [
            {"disk": disk_words(job.disk), "comparison": job.comparison.name, "arm": arm, "setting": _words(job, value)}
            for job in jobs
            for arm, value in (("A", job.comparison.control), ("B", job.comparison.candidate))
        ]
    )
    means = order.join(counted, on=["disk", "comparison", "arm"], how="inner", maintain_order="left")
    waited = pl.col("expert_wait_ms") + pl.col("ple_wait_ms")
    note = pl.when("some").then(pl.lit("")).otherwise(pl.lit(" (no valid cohort)"))
    label = pl.concat_str("comparison", pl.lit(": "), "setting", note)
    return means.with_columns(label=label, compute_ms=pl.col("token_ms") - waited)


def _words(job: Job, value: Any) -> str:
    return f"{job.comparison.setting} {str(value).lower()}"


def comparison_table(arms: pl.DataFrame, jobs: Sequence[Job], config: ComparisonConfig) -> list[dict[str, Any]]:
    """One row per job: tokens/s and bytes of arms B divided by those of arms A, and why cohorts were rejected."""
    return [_comparison_row(arms, job, config) for job in jobs]


def _comparison_row(arms: pl.DataFrame, job: Job, config: ComparisonConfig) -> dict[str, Any]:
    compared, disk = job.comparison, disk_words(job.disk)
    cohorts = intervals.cohorts_of(arms, disk, compared.name, config.cohorts)
    own = arms.filter(pl.col("disk") == disk, pl.col("comparison") == compared.name)
    speedup = intervals.speedup(cohorts, config.min_cohorts)
    row = {
        "disk": disk,
        "comparison": compared.name,
        "B / A": f"{_words(job, compared.candidate)} / {str(compared.control).lower()}",
        "cohorts": f"{len(cohorts)} of {own['cohort'].n_unique()}",
        "rejected for": ", ".join(sorted({code for codes in own["codes"] for code in codes.split(", ") if code})),
        "tokens_per_s_ratio": speedup.value,
        "low": speedup.low,
        "high": speedup.high,
    }
    moved = _mean([_moved(cohort) for cohort in cohorts])
    return row | {"bytes_ratio": moved, "evidence": config.evidence.value}


def arm_table(means: pl.DataFrame) -> list[dict[str, Any]]:
    """One row per comparison and disk of `arm_means`: both arms side by side, milliseconds per token and GB/s."""
    sides = {arm: means.filter(arm=arm) for arm in "AB"}
    rows = []
    for control, candidate in zip(sides["A"].iter_rows(named=True), sides["B"].iter_rows(named=True), strict=True):
        row = {"disk": control["disk"], "comparison": control["comparison"], "from valid cohorts": control["some"]}
        for measure, name in _SIDE_BY_SIDE.items():
            row |= {f"{name}, A": control[measure], f"{name}, B": candidate[measure]}
        rows.append(row)
    return rows


def _moved(cohort: intervals.Cohort) -> float:
    """Demanded and wasted bytes per token, arms B divided by arms A; NaN where arms A read nothing."""
    both = [demand + wasted for demand, wasted in zip(cohort["demand_bytes"], cohort["wasted_bytes"], strict=True)]
    return intervals.candidate(both) / intervals.control(both) if intervals.control(both) else math.nan


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def identity_table(identity: pl.DataFrame) -> list[dict[str, Any]]:
    """One row per kind of identity runs, with its first run whose digests differ."""
    kinds = identity.group_by("kind", maintain_order=True).agg(runs=pl.len(), identical=pl.col("identical").sum())
    wrong = identity.filter(~pl.col("identical"))
    rows = [{**row, "first that differs": ""} for row in kinds.iter_rows(named=True)]
    for row in rows:
        first = wrong.filter(kind=row["kind"]).head(1)
        row["first that differs"] = " ".join((first["case"][0], first["error"][0])) if first.height else ""
    return rows


def arm_figures(means: pl.DataFrame, config: ComparisonConfig) -> dict[str, Any]:
    """Figures of `arm_means` by name: waits on every disk, and the parts of a token's time on the first disk."""
    # matplotlib takes a while to import: only a run that draws pays for it
    from workbench.plots import overlap as plots

    first = disk_words(config.disks[0])
    return {
        "waits": plots.wait_figure(means, config.evidence, config.profile),
        "waterfall": plots.waterfall_figure(means.filter(disk=first), config.evidence, f"{config.profile}, {first}"),
    }
