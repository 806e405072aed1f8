"""Tables and figures of a Gate C run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from workbench.analysis.overlap import DECODE_SCHEMA
from workbench.gates.c_overlap import estimates as estimates
from workbench.gates.c_overlap.config import OverlapConfig
from workbench.gates.c_overlap.modes import modes_profile
from workbench.gates.c_overlap.plan import Job, disk_words
from workbench.gates.c_overlap.verdict import TABLES, Measures, outcome_by_disk
from workbench.schema import Criterion, Evidence
from workbench.schema.parquet import write_parquet
from workbench.units import GB

_MEASURES = tuple(DECODE_SCHEMA)
_SIDE_BY_SIDE = {
    "token_ms": "token ms",
    "expert_wait_ms": "record wait ms",
    "ple_wait_ms": "page wait ms",
    "readback_ms": "read-back ms",
    "read_gbps": "records GB/s",
}


def arm_means(arms: pl.DataFrame, jobs: Sequence[Job]) -> pl.DataFrame:
    """One row a comparison, disk and arm, in the order of the jobs: means over the arms that count, over all where none does."""
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
    note = pl.when("some").then(pl.lit("")).otherwise(pl.lit(" (no cohort counts)"))
    label = pl.concat_str("comparison", pl.lit(": "), "setting", note)
    return means.with_columns(label=label, compute_ms=pl.col("token_ms") - waited)


def _words(job: Job, value: Any) -> str:
    return f"{job.comparison.setting} {str(value).lower()}"


def comparison_table(arms: pl.DataFrame, jobs: Sequence[Job], config: OverlapConfig, evidence: Evidence) -> list[dict[str, Any]]:
    """One row a comparison and disk: tokens/s of candidate over control with its interval, and what both arms did."""
    return [_comparison_row(arms, job, config, evidence) for job in jobs]


def _comparison_row(arms: pl.DataFrame, job: Job, config: OverlapConfig, evidence: Evidence) -> dict[str, Any]:
    compared, disk = job.comparison, disk_words(job.disk)
    cohorts = estimates.cohorts_of(arms, disk, compared.name, config.cohorts)
    own = arms.filter(pl.col("disk") == disk, pl.col("comparison") == compared.name)
    slower = estimates.rate_ratio(cohorts, "token_ms", config.min_cohorts)
    row = {
        "disk": disk,
        "comparison": compared.name,
        "B over A": f"{_words(job, compared.candidate)} over {str(compared.control).lower()}",
        "cohorts": f"{len(cohorts)} of {own['cohort'].n_unique()}",
        "rejected for": ", ".join(sorted({code for codes in own["codes"] for code in codes.split(", ") if code})),
        "tokens_per_s_ratio": 1 / slower.value,
        "low": 1 / slower.high,
        "high": 1 / slower.low,
    }
    moved = _mean([_moved(cohort) for cohort in cohorts])
    return row | {"bytes_ratio": moved, "evidence": evidence.value}


def arm_table(means: pl.DataFrame) -> list[dict[str, Any]]:
    """One row a comparison and disk: both arms side by side, milliseconds a token and GB/s."""
    sides = {arm: means.filter(arm=arm) for arm in "AB"}
    rows = []
    for control, candidate in zip(sides["A"].iter_rows(named=True), sides["B"].iter_rows(named=True), strict=True):
        row = {"disk": control["disk"], "comparison": control["comparison"], "from cohorts that count": control["some"]}
        for measure, name in _SIDE_BY_SIDE.items():
            row |= {f"{name}, A": control[measure], f"{name}, B": candidate[measure]}
        rows.append(row)
    return rows


def _moved(cohort: estimates.Cohort) -> float:
    """Demanded and wasted bytes a token, B over A."""
    both = [demand + wasted for demand, wasted in zip(cohort["demand_bytes"], cohort["wasted_bytes"], strict=True)]
    return estimates.candidate(both) / estimates.control(both) if estimates.control(both) else float("nan")


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def mode_table(modes: pl.DataFrame) -> list[dict[str, Any]]:
    """One row a tile: how much of the layer it uses, both modes' times, what was chosen and what that cost."""
    return [_mode_row(modes, tile) for tile in sorted(modes["tile"].unique().to_list())]


def _mode_row(modes: pl.DataFrame, tile: int) -> dict[str, Any]:
    at = modes.filter(tile=tile)
    seconds = dict(at.group_by("mode").agg(pl.col("seconds").mean()).iter_rows())
    faster = estimates.faster_mode(modes, tile)
    macro = at.filter(mode="macro")
    return {
        "tile": tile,
        "unique_fraction": estimates.unique_fraction(modes, tile),
        "micro_s": seconds.get("micro"),
        "macro_s": seconds.get("macro"),
        "chosen_s": seconds.get("auto"),
        "faster": faster,
        "chosen": ", ".join(estimates.chosen_modes(modes, tile)),
        "chosen_over_faster": estimates.choice_ratio(modes, tile, faster).value,
        "macro_overread_over_hidden": estimates.overread_over_hidden(modes, tile).value,
        "macro_reading_gbps": float(macro["physical_bytes"].to_numpy().sum() / GB / macro["io_s"].to_numpy().sum()),
    }


def identity_table(identity: pl.DataFrame) -> list[dict[str, Any]]:
    """One row a kind of runs, then one a run that differs."""
    kinds = identity.group_by("kind", maintain_order=True).agg(runs=pl.len(), identical=pl.col("identical").sum())
    wrong = identity.filter(~pl.col("identical"))
    rows = [{**row, "first that differs": ""} for row in kinds.iter_rows(named=True)]
    for row in rows:
        first = wrong.filter(kind=row["kind"]).head(1)
        row["first that differs"] = " ".join((first["case"][0], first["error"][0])) if first.height else ""
    return rows


def shown_tables(
    found: Measures, jobs: Sequence[Job], config: OverlapConfig, evidence: Evidence, criteria: Sequence[Criterion]
) -> dict[str, list[dict[str, Any]]]:
    """Tables for people."""
    return {
        "clauses": [dict(row) for row in outcome_by_disk(criteria)],
        "comparisons": comparison_table(found.arms, jobs, config, evidence),
        "arms": arm_table(arm_means(found.arms, jobs)),
        "identity": identity_table(found.identity),
        "modes": mode_table(found.modes),
        "rates": found.rates.to_dicts(),
    }


def save_evidence(found: Measures, jobs: Sequence[Job], config: OverlapConfig, evidence: Evidence, artifacts: Path) -> None:
    """Every table as parquet and every figure as PNG."""
    from workbench.plots import overlap as plots
    from workbench.plots.style import save_figure

    (artifacts / "tables").mkdir(exist_ok=True)
    for name in TABLES:
        write_parquet(getattr(found, name), artifacts / "tables" / f"{name}.parquet")
    means = arm_means(found.arms, jobs)
    first = disk_words(jobs[0].disk)
    figures = {
        "waits": plots.wait_figure(means, evidence, config.profile),
        "waterfall": plots.waterfall_figure(means.filter(disk=first), evidence, f"{config.profile}, {first}"),
        "overlap": plots.overlap_figure(found.rates, config.profile),
        "crossover": plots.crossover_figure(found.modes, f"a layer of profile {modes_profile(config)}"),
    }
    for name, figure in figures.items():
        save_figure(figure, artifacts / "figures" / f"{name}.png")
