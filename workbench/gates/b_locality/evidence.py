"""What Gate B leaves beside its verdict: every table as parquet, every figure as PNG, and tables small enough for people."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from workbench.analysis.locality_tables import HOT_SHARE
from workbench.analysis.misses import curve_by_capacity
from workbench.schema.parquet import write_parquet


def save_evidence(made: Mapping[str, pl.DataFrame], *, at_fraction: float, max_acceptance: float, source: str, to: Path) -> None:
    """Writes tables and figures under `to`."""
    from workbench.plots import caches
    from workbench.plots import locality as plots
    from workbench.plots.style import save_figure

    figures = {
        "misses": plots.miss_figure(made["misses"], at_fraction, source),
        "unions": plots.union_figure(made["unions"], source),
        "acceptance": plots.acceptance_figure(made["acceptance"], max_acceptance, source),
        "overlap": plots.overlap_figure(made["overlap"], source),
        "reuse": plots.reuse_figure(made["reuse"], source),
        "skew": plots.skew_figure(made["skew"], HOT_SHARE, source),
        "belady_gap": caches.gap_figure(made["belady_gap"], source),
        "slot_value": caches.slot_value_figure(made["slot_value"], at_fraction, source),
        "stalls": caches.stall_figure(made["stalls"], source),
    }
    for name, figure in figures.items():
        save_figure(figure, to / "figures" / f"{name}.png")
    (to / "tables").mkdir(exist_ok=True)
    for name, table in made.items():
        write_parquet(table, to / "tables" / f"{name}.parquet")


def shown_tables(made: Mapping[str, pl.DataFrame]) -> dict[str, list[dict[str, Any]]]:
    """Tables small enough for people; the reuse distances stay in their file."""
    ratios = made["break_even"].select("block", "byte_ratio", tau=pl.format("tau {}", "tau"))
    by_tau = ratios.pivot("tau", index="block", values="byte_ratio")
    shown = {**made, "break_even": by_tau, "misses": curve_by_capacity(made["misses"])}
    return {name: table.to_dicts() for name, table in shown.items() if name != "reuse"}
