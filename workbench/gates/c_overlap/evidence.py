"""Tables and figures of a Gate C run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from workbench.gates.c_overlap import estimates
from workbench.gates.c_overlap.config import OverlapConfig
from workbench.gates.c_overlap.modes import modes_profile
from workbench.gates.c_overlap.verdict import TABLES, Measures
from workbench.gates.shared.clauses import outcome_by_disk
from workbench.gates.shared.comparisons import Job
from workbench.gates.shared.files import save_figures, save_tables
from workbench.gates.shared.tables import arm_figures, arm_means, arm_table, comparison_table, identity_table
from workbench.schema import Criterion
from workbench.units import GB


def mode_table(modes: pl.DataFrame) -> list[dict[str, Any]]:
    """One row a tile: share of the layer's bytes that it uses, seconds of both modes, the chosen mode and its cost."""
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


def shown_tables(
    found: Measures, jobs: Sequence[Job], config: OverlapConfig, criteria: Sequence[Criterion]
) -> dict[str, list[dict[str, Any]]]:
    """Tables for people, by name."""
    return {
        "clauses": [dict(row) for row in outcome_by_disk(criteria)],
        "comparisons": comparison_table(found.arms, jobs, config),
        "arms": arm_table(arm_means(found.arms, jobs)),
        "identity": identity_table(found.identity),
        "modes": mode_table(found.modes),
        "rates": found.rates.to_dicts(),
    }


def save_evidence(found: Measures, jobs: Sequence[Job], config: OverlapConfig, artifacts: Path) -> None:
    """Writes every table as parquet and every figure as PNG."""
    # matplotlib takes a while to import: only a run that draws pays for it
    from workbench.plots import overlap as plots

    save_tables({name: getattr(found, name) for name in TABLES}, artifacts)
    figures = {
        **arm_figures(arm_means(found.arms, jobs), config),
        "overlap": plots.overlap_figure(found.rates, config.profile),
        "crossover": plots.crossover_figure(found.modes, f"a layer of profile {modes_profile(config)}"),
    }
    save_figures(figures, artifacts)
