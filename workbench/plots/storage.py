"""Figures of Gate A, from the tables of `analysis.storage`."""

import math

import polars as pl
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter, StrMethodFormatter

from workbench.plots.style import BLUE, GREEN, GREY, ORANGE, PURPLE, band, legend, new_figure
from workbench.schema import Evidence

_COLOURS = {"uring": BLUE, "pread": GREEN, "buffered": ORANGE, "mmap": GREY}


def heat_figure(cells: pl.DataFrame, source: str) -> Figure:
    """GB/s by size and depth, one panel a reader, all on one scale."""
    readers = [name for name in _COLOURS if name in cells["reader"]]
    by_size = cells.filter(reader=readers[0], depth=1).sort("physical_bytes_per_read")
    sizes = by_size["size"].to_list()
    figure = Figure(figsize=(2.2 + 2.3 * len(readers), 0.9 + 0.42 * (len(sizes) + 2)), layout="constrained")
    figure.suptitle("Bandwidth, GB/s, cold and alone", x=0.01, ha="left", fontsize=11, fontweight="bold")
    top = float(cells["bandwidth_gbps"].max() or 1.0)  # type: ignore[arg-type]
    for number, reader in enumerate(readers):
        axes = figure.add_subplot(1, len(readers), number + 1)
        part = cells.filter(reader=reader)
        depths = sorted(part["depth"].unique().to_list())
        values = {(row["size"], row["depth"]): row["bandwidth_gbps"] for row in part.iter_rows(named=True)}
        grid = [[values.get((size, depth), float("nan")) for depth in depths] for size in sizes]
        axes.imshow(grid, cmap="Blues", vmin=0, vmax=top, aspect="auto")
        for y, row in enumerate(grid):
            for x, value in enumerate(row):
                if value == value:
                    colour = "white" if value > 0.6 * top else "black"
                    axes.text(x, y, f"{value:.2g}", ha="center", va="center", fontsize=7, color=colour)
        axes.set_title(reader, fontsize=9)
        axes.set_xticks(range(len(depths)), [str(depth) for depth in depths], fontsize=8)
        axes.set_yticks(range(len(sizes)), sizes if number == 0 else [""] * len(sizes), fontsize=8)
        axes.set_xlabel("depth", fontsize=8)
        axes.spines[:].set_visible(False)
    figure.supxlabel(f"evidence: physical   |   {source}", fontsize=8, color="#555555", x=0.99, ha="right")
    return figure


def depth_figure(cells: pl.DataFrame, measure: str, title: str, unit: str, source: str) -> Figure:
    """A measure over depth by reader; of bandwidth, the pale band spans all repeats."""
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
    """Median and 99th percentile from submit to ready of single pages over depth, by reader."""
    figure, axes = new_figure("Submit to ready, pages of 4 KiB, cold", evidence=Evidence.PHYSICAL, source=source)
    for reader, colour in _COLOURS.items():
        part = cells.filter(reader=reader).sort("depth")
        if part.is_empty():
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
    """How much longer reads take beside a load, and the load beside reads: 1 is alone."""
    figure, axes = new_figure("Slower by, beside each other (1: alone)", evidence=Evidence.PHYSICAL, source=source)
    labels = [f"{row['reader']}\n{row['size']} x{row['depth']}\n{row['beside']}" for row in beside.iter_rows(named=True)]
    places = list(range(len(labels)))
    bars = (
        ("p50_over_idle", -0.2, BLUE, "reads: median time until seen"),
        ("load_slowdown", 0.2, PURPLE, "load: time of a step"),
    )
    for column, shift, colour, label in bars:
        known = [(x + shift, value) for x, value in zip(places, beside[column].to_list(), strict=True) if math.isfinite(value)]
        axes.bar([x for x, _ in known], [value for _, value in known], width=0.4, color=colour, label=label)
    axes.axhline(1, color=GREY, lw=0.8)
    axes.set_xticks(places, labels, fontsize=5.5)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    legend(axes)
    return figure


def crossover_figure(crossover: pl.DataFrame, source: str) -> Figure:
    """Time of sparse reads over that of one extent, by the share of the layer that is wanted."""
    figure, axes = new_figure("Sparse reads over one sequential extent, time", evidence=Evidence.PHYSICAL, source=source)
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
    """Bandwidth of each round over the median of the same cells, in time."""
    figure, axes = new_figure("Each round against the median of its cells", evidence=Evidence.PHYSICAL, source=source)
    seconds, relative = drift["start_s"].to_list(), drift["relative"].to_list()
    below = [max(0.0, middle - low) for middle, low in zip(relative, drift["low"].to_list(), strict=True)]
    above = [max(0.0, high - middle) for middle, high in zip(relative, drift["high"].to_list(), strict=True)]
    axes.errorbar(
        seconds, relative, yerr=[below, above], color=BLUE, marker="o", ls="none", capsize=2, label="middle four fifths"
    )
    axes.axhline(1, color=GREY, lw=0.8)
    axes.set_xlabel("seconds since the first run")
    axes.set_ylabel("bandwidth over median")
    axes.set_ylim(bottom=0)
    legend(axes)
    return figure


def _depth_axis(axes: object) -> None:
    axes.set_xscale("log", base=2)  # type: ignore[attr-defined]
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))  # type: ignore[attr-defined]
    axes.set_xlabel("depth, reads in flight")  # type: ignore[attr-defined]
