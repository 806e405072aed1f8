"""Figures of Gate C, from its tables of arms and prefill passes."""

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from workbench.plots.style import BLUE, GREEN, ORANGE, PURPLE, legend, new_figure
from workbench.schema import Evidence

RED = "#e45756"
_PARTS = (("compute_ms", "compute, read-back and host", BLUE), ("expert_wait_ms", "exposed expert wait", RED))
_MODES = {
    "micro": (BLUE, "micro: the tile's union"),
    "macro": (GREEN, "macro: the whole layer"),
    "auto": (ORANGE, "auto: the chosen mode"),
}


def wait_figure(waits: pl.DataFrame, evidence: Evidence, source: str) -> Figure:
    """Exposed wait per token of control and candidate, one panel per disk: records below, pages on top."""
    disks = waits["disk"].unique(maintain_order=True).to_list()
    rows = waits.group_by("disk").len()["len"].to_numpy().max()
    figure = Figure(figsize=(7.6, 1.1 + len(disks) * (0.5 + 0.17 * rows)), layout="constrained")
    figure.suptitle("Exposed wait of a decoded token", x=0.01, ha="left", fontsize=11, fontweight="bold")
    for axes, disk in zip(figure.subplots(len(disks), 1, squeeze=False)[:, 0], disks, strict=True):
        _stack(axes, waits.filter(disk=disk), (("expert_wait_ms", "records", RED), ("ple_wait_ms", "n-gram pages", ORANGE)))
        axes.set_title(disk, fontsize=9, loc="left")
    axes.set_xlabel("milliseconds per token, mean over arms", fontsize=8)
    return _sign(figure, axes, evidence, source)


def waterfall_figure(tokens: pl.DataFrame, evidence: Evidence, source: str) -> Figure:
    """Parts of a token's time, one bar per arm: compute, then exposed waits."""
    figure = Figure(figsize=(7.6, 1.3 + 0.24 * len(tokens)), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title("Where a decoded token's time goes", loc="left", fontsize=11, fontweight="bold")
    _stack(axes, tokens, (*_PARTS, ("ple_wait_ms", "exposed n-gram wait", ORANGE)))
    axes.set_xlabel("milliseconds per token, mean over arms", fontsize=8)
    return _sign(figure, axes, evidence, source)


def _stack(axes: Axes, rows: pl.DataFrame, parts: tuple[tuple[str, str, str], ...]) -> None:
    labels, left = rows["label"].to_list(), [0.0] * len(rows)
    for column, words, colour in parts:
        # an arm that left no events has no bar
        values = rows[column].fill_null(0.0).fill_nan(0.0).to_list()
        axes.barh(range(len(labels)), values, left=left, height=0.7, color=colour, label=words)
        left = [at + value for at, value in zip(left, values, strict=True)]
    axes.set_yticks(range(len(labels)), labels, fontsize=7)
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.set_xlim(0, 1.02 * max([*left, 1e-9]))


def crossover_figure(modes: pl.DataFrame, source: str) -> Figure:
    """Time of a tile by its size, with each mode forced and with the mode that the runtime chooses."""
    title = "Prefill of one layer; compute is a timed wait"
    figure, axes = new_figure(title, evidence=Evidence.EMULATED, source=source)
    means = modes.group_by("mode", "tile").agg(
        pl.col("seconds").mean(), low=pl.col("seconds").min(), high=pl.col("seconds").max()
    )
    for mode, (colour, words) in _MODES.items():
        part = means.filter(mode=mode).sort("tile")
        line = "--" if mode == "auto" else "-"
        axes.plot(part["tile"].to_list(), part["seconds"].to_list(), color=colour, ls=line, marker="o", label=words)
        axes.fill_between(part["tile"].to_list(), part["low"].to_list(), part["high"].to_list(), color=colour, alpha=0.18, lw=0)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sorted(modes["tile"].unique().to_list()))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.set_xlabel("tokens in the tile")
    axes.set_ylabel("seconds")
    legend(axes)
    return figure


def overlap_figure(rates: pl.DataFrame, source: str) -> Figure:
    """Rates of compute and reads at once / alone, by round: 1 means undisturbed."""
    figure, axes = new_figure("Rates of compute and reads at once / alone", evidence=Evidence.PHYSICAL, source=source)
    for (beside, alone), colour, words in (
        (("steps_beside_per_s", "steps_alone_per_s"), PURPLE, "compute"),
        (("read_beside_gbps", "read_alone_gbps"), BLUE, "reads of records"),
    ):
        axes.plot(rates["round"].to_list(), (rates[beside] / rates[alone]).to_list(), color=colour, marker="o", label=words)
    axes.axhline(1, color="#bbbbbb", lw=0.8)
    axes.set_xlabel("round")
    axes.set_xticks(rates["round"].to_list())
    axes.set_ylabel("rate at once / rate alone")
    axes.set_ylim(0, 1.1 * max(1.0, *(line.get_ydata().max() for line in axes.lines[:2])))  # type: ignore[union-attr]
    legend(axes)
    return figure


def _sign(figure: Figure, axes: Axes, evidence: Evidence, source: str) -> Figure:
    """The legend of one panel for all of them, and the evidence in the corner."""
    marks, words = axes.get_legend_handles_labels()
    figure.legend(marks, words, fontsize=7, ncols=len(words), loc="outside lower left", frameon=False)
    figure.supxlabel(f"evidence: {evidence.value}   |   {source}", fontsize=8, color="#555555", x=0.99, ha="right")
    return figure
