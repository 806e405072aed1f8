"""Figures of a Gate B run, and its tables that are small enough for people."""

from collections.abc import Mapping
from typing import Any

import polars as pl

from workbench.analysis.locality_tables import HOT_SHARE
from workbench.analysis.misses import curve_by_capacity


def made_figures(made: Mapping[str, pl.DataFrame], *, at_fraction: float, max_acceptance: float, source: str) -> dict[str, Any]:
    """Every figure of the tables `made`, by name; `source` stands in the figure's corner."""
    # matplotlib takes a while to import: only a run that draws pays for it
    from workbench.plots import caches
    from workbench.plots import locality as plots

    return {
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


def shown_tables(made: Mapping[str, pl.DataFrame]) -> dict[str, list[dict[str, Any]]]:
    """Tables small enough for people; the reuse distances stay in their file."""
    ratios = made["break_even"].select("block", "byte_ratio", tau=pl.format("tau {}", "tau"))
    by_tau = ratios.pivot("tau", index="block", values="byte_ratio")
    shown = {**made, "break_even": by_tau, "misses": curve_by_capacity(made["misses"])}
    return {name: table.to_dicts() for name, table in shown.items() if name != "reuse"}
