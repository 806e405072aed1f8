"""One look for all figures: colours that colour-blind readers can tell apart, and the evidence in the corner."""

from pathlib import Path

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from workbench.files import replacing
from workbench.schema import Evidence

BLUE, ORANGE, GREEN, PURPLE, GREY = "#4c78a8", "#f58518", "#009e73", "#9467bd", "#7f7f7f"
ARM_COLOURS = {"A": BLUE, "B": ORANGE}
"""Arms of a cohort, the same in figures and in MLflow."""

_DOTS_PER_INCH = 150
_PALE = 0.18


def new_figure(title: str, *, evidence: Evidence, source: str) -> tuple[Figure, Axes]:
    """A figure with one plot; `source` names the measured data in a few words, e.g. `mini, 40 requests`."""
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    figure.supxlabel(f"evidence: {evidence.value}   |   {source}", fontsize=8, color="#555555", x=0.99, ha="right")
    return figure, axes


def band(axes: Axes, x: object, low: object, high: object, colour: str) -> None:
    """A 95 % interval as a pale band."""
    axes.fill_between(x, low, high, color=colour, alpha=_PALE, linewidth=0)  # type: ignore[arg-type]


def error_bars(table: pl.DataFrame, column: str) -> list[list[float]]:
    """Distances from a column to the ends of its 95 % interval (`_low`, `_high`); an end on the wrong side counts as 0."""
    below, above = table[column] - table[f"{column}_low"], table[f"{column}_high"] - table[column]
    return [side.clip(lower_bound=0).to_list() for side in (below, above)]


def legend(axes: Axes) -> None:
    """A small translucent legend."""
    axes.legend(fontsize=8, framealpha=0.85, edgecolor="none")


def layer_axis(axes: Axes) -> None:
    """Layers are whole numbers."""
    axes.set_xlabel("layer")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def save_figure(figure: Figure, path: Path) -> None:
    """Writes a PNG; the same figure gives the same bytes, because the file holds no date."""
    with replacing(path) as part:
        figure.savefig(part, format="png", dpi=_DOTS_PER_INCH, metadata={"Software": None})
