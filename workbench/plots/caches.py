"""Figures of what cache slots save, from the tables of `analysis.misses`, `analysis.slot_value` and `experiments.stalls`."""

import polars as pl
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from workbench.plots.style import BLUE, GREEN, GREY, ORANGE, PURPLE, band, error_bars, layer_axis, legend, new_figure
from workbench.schema import Evidence

_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, GREY)
_LINES = {"barrier": "--"}


def gap_figure(gap: pl.DataFrame, source: str) -> Figure:
    """Misses of each policy divided by Belady's, by capacity."""
    figure, axes = new_figure("Misses / misses of a cache that knows the future", evidence=Evidence.SIMULATED, source=source)
    for colour, policy in zip(_COLOURS, gap["policy"].unique(maintain_order=True), strict=False):
        part = gap.filter(policy=policy).sort("fraction")
        x = part["fraction"].to_list()
        band(axes, x, part["gap_low"].to_list(), part["gap_high"].to_list(), colour)
        axes.plot(x, part["gap"].to_list(), color=colour, marker=".", label=policy)
    axes.axhline(1, color=GREY, lw=0.8, label="belady")
    axes.set_xlabel("cache, share of all records")
    axes.set_ylabel("misses / Belady's misses")
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    legend(axes)
    return figure


def slot_value_figure(values: pl.DataFrame, at_fraction: float, source: str) -> Figure:
    """Misses per token that one more slot saves, by layer."""
    title = f"Misses per token that one more slot in a layer saves, at {at_fraction:.0%} of its records"
    figure, axes = new_figure(title, evidence=Evidence.SIMULATED, source=source)
    saved = values["saved_by_a_slot"]
    axes.bar(values["layer"].to_list(), saved.to_list(), yerr=error_bars(values, "saved_by_a_slot"), color=BLUE, capsize=2)
    axes.axhline(float(saved.sum()) / len(saved), color=ORANGE, ls=":", label="mean")
    axes.set_ylabel("misses per token")
    layer_axis(axes)
    legend(axes)
    return figure


def stall_figure(stalls: pl.DataFrame, source: str) -> Figure:
    """Exposed wait divided by bytes read, milliseconds per megabyte, by cache, disk and wave."""
    figure, axes = new_figure("Exposed wait per byte read", evidence=Evidence.SIMULATED, source=source)
    for colour, envelope in zip(_COLOURS, stalls["envelope"].unique(maintain_order=True), strict=False):
        for wave in stalls["wave"].unique(maintain_order=True):
            part = stalls.filter(envelope=envelope, wave=wave).sort("fraction")
            label = f"{envelope}, {wave if wave in _LINES else f'waves of {wave}'}"
            values = part["stall_ms_per_mb"].to_list()
            axes.plot(part["fraction"].to_list(), values, _LINES.get(wave, "-"), color=colour, marker=".", label=label)
    axes.set_xlabel("cache, share of all records")
    axes.set_ylabel("exposed wait / bytes read, ms per MB")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    legend(axes)
    return figure
