"""Figures of Gate A, from the tables of `analysis.storage`."""

import math
from collections.abc import Sequence

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter, StrMethodFormatter

from workbench.plots.style import BLUE, GREEN, GREY, ORANGE, PURPLE, band, legend, new_figure
from workbench.schema import Evidence

_COLOURS = {"uring": BLUE, "pread": GREEN, "buffered": ORANGE, "mmap": GREY}


def heat_figure(cells: pl.DataFrame, source: str) -> Figure:
    """GB/s by size and depth, one panel per reader, all on one scale."""
    readers = [name for name in _COLOURS if name in cells["reader"]]
    sizes = cells.filter(reader=readers[0], depth=1).sort("physical_bytes_per_read")["size"].to_list()
    depths = {reader: sorted(cells.filter(reader=reader)["depth"].unique().to_list()) for reader in readers}
    widths = [max(1.6, len(depths[reader])) for reader in readers]
    figure = Figure(figsize=(1.6 + 0.48 * sum(widths), 0.9 + 0.42 * (len(sizes) + 2)), layout="constrained")
    figure.suptitle("Bandwidth, GB/s, cold and alone", x=0.01, ha="left", fontsize=11, fontweight="bold")
    top = float(cells["bandwidth_gbps"].max() or 1.0)  # type: ignore[arg-type]
    panels = figure.subplots(1, len(readers), width_ratios=widths, squeeze=False)[0]
    for axes, reader in zip(panels, readers, strict=True):
        _heat_panel(axes, cells.filter(reader=reader), sizes, depths[reader], top)
        axes.set_title(reader, fontsize=9)
    panels[0].set_yticks(range(len(sizes)), sizes, fontsize=8)
    figure.supxlabel(f"evidence: {Evidence.PHYSICAL.value}   |   {source}", fontsize=8, color="#555555", x=0.99, ha="right")
    return figure


def _heat_panel(axes: Axes, cells: pl.DataFrame, sizes: Sequence[str], depths: Sequence[int], top: float) -> None:
    values = {(row["size"], row["depth"]): row["bandwidth_gbps"] for row in cells.iter_rows(named=True)}
    grid = [[values.get((size, depth), math.nan) for depth in depths] for size in sizes]
    axes.imshow(grid, cmap="Blues", vmin=0, vmax=top, aspect="auto")
    for (size, depth), value in values.items():
        colour = "white" if value > 0.6 * top else "black"
        words = f"{value:.2f}" if value >= 0.095 else f"{value:.3f}"
        axes.text(depths.index(depth), sizes.index(size), words, ha="center", va="center", fontsize=6.5, color=colour)
    axes.set_xticks(range(len(depths)), [str(depth) for depth in depths], fontsize=8)
    axes.set_yticks([])
    axes.set_xlabel("depth", fontsize=8)
    axes.spines[:].set_visible(False)


def depth_figure(cells: pl.DataFrame, measure: str, title: str, unit: str, source: str) -> Figure:
    """A measure by depth and reader; of bandwidth, the pale band spans all repeats."""
    figure, axes = new_figure(title, evidence=Evidence.PHYSICAL, source=source)
    for reader, colour in _COLOURS.items():
        part = cells.filter(reader=reader).sort("depth")
        if part.is_empty():
            continue
        depths = part["depth"].to_list()
        if measure == "bandwidth_gbps":
            band(axes, depths, part["bandwidth_low_gbps"].to_list(), part["bandwidth_high_gbps"].to_list(), colour)
        axes.plot(depths, part[measure].to_list(), color=colour, marker="o", label=reader)
    _depth_axis(axes)
    axes.set_ylabel(unit)
    axes.set_ylim(bottom=0)
    legend(axes)
    return figure


def latency_figure(cells: pl.DataFrame, source: str) -> Figure:
    """Median and 99th percentile from submit to ready of single pages, by depth and reader."""
    figure, axes = new_figure("Submit to ready, pages of 4 KiB, cold", evidence=Evidence.PHYSICAL, source=source)
    for reader, colour in _COLOURS.items():
        part = cells.filter(reader=reader).sort("depth")
        if part.is_empty() or reader == "mmap":
            continue
        axes.plot(part["depth"].to_list(), part["p50_us"].to_list(), color=colour, marker="o", label=f"{reader}, p50")
        axes.plot(part["depth"].to_list(), part["p99_us"].to_list(), color=colour, marker=".", ls=":", label=f"{reader}, p99")
    _depth_axis(axes)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.set_ylabel("microseconds")
    legend(axes)
    return figure


def beside_figure(beside: pl.DataFrame, source: str) -> Figure:
    """Read time beside a load / alone, and time of a load's step beside reads / alone."""
    figure, axes = new_figure("Slowdown of reads and a load that run at once", evidence=Evidence.PHYSICAL, source=source)
    labels = [f"{row['reader']}, {row['size']} x {row['depth']}, {row['beside']}" for row in beside.iter_rows(named=True)]
    places = list(range(len(labels)))
    bars = (
        ("p50_over_idle", -0.2, BLUE, "reads: median time until seen"),
        ("load_slowdown", 0.2, PURPLE, "load: time of a step"),
    )
    for column, shift, colour, label in bars:
        known = [(y + shift, value) for y, value in zip(places, beside[column].to_list(), strict=True) if math.isfinite(value)]
        axes.barh([y for y, _ in known], [value - 1 for _, value in known], left=1, height=0.4, color=colour, label=label)
    axes.axvline(1, color=GREY, lw=0.8)
    axes.set_yticks(places, labels, fontsize=7)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.set_xlabel("time at once / time alone")
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color="#dddddd", linewidth=0.7)
    legend(axes)
    return figure


def crossover_figure(crossover: pl.DataFrame, source: str) -> Figure:
    """Time of sparse reads / time of one extent, by the share of the layer that is read."""
    figure, axes = new_figure("Time of sparse reads / time of one sequential extent", evidence=Evidence.PHYSICAL, source=source)
    shares = crossover["share"].to_list()
    band(axes, shares, crossover["ratio_low"].to_list(), crossover["ratio_high"].to_list(), BLUE)
    axes.plot(shares, crossover["ratio"].to_list(), color=BLUE, marker="o", label="median; the band spans all repeats")
    axes.axhline(1, color=ORANGE, ls="--", label="above: the extent is faster")
    axes.set_xlabel("share of the layer's records that are wanted")
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_ylim(bottom=0)
    legend(axes)
    return figure


def drift_figure(drift: pl.DataFrame, source: str) -> Figure:
    """Bandwidth of each round / median of the same cells, by time."""
    figure, axes = new_figure("Each round against the median of its cells", evidence=Evidence.PHYSICAL, source=source)
    seconds, relative = drift["start_s"].to_list(), drift["relative"].to_list()
    below = [max(0.0, middle - low) for middle, low in zip(relative, drift["low"].to_list(), strict=True)]
    above = [max(0.0, high - middle) for middle, high in zip(relative, drift["high"].to_list(), strict=True)]
    axes.errorbar(
        seconds, relative, yerr=[below, above], color=BLUE, marker="o", ls="none", capsize=2, label="middle 80 % of cells"
    )
    axes.axhline(1, color=GREY, lw=0.8)
    axes.set_xlabel("seconds since the first run")
    axes.set_ylabel("bandwidth / median")
    axes.set_ylim(bottom=0)
    legend(axes)
    return figure


def _depth_axis(axes: Axes) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.set_xlabel("depth, reads in flight")
