"""Figure of the twin's validation, from its rows."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from workbench.analysis.twin_errors import QUANTITIES
from workbench.plots.style import BLUE, GREEN, GREY, ORANGE, PURPLE, legend, new_figure
from workbench.schema import Evidence

_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, GREY)


def error_figure(rows: Sequence[Mapping[str, Any]], max_error: float, source: str) -> Figure:
    """The twin's relative error in each live run, by quantity and disk."""
    figure, axes = new_figure("Twin against live runs: relative errors", evidence=Evidence.SIMULATED, source=source)
    disks = list(dict.fromkeys(row["envelope"] for row in rows))
    for place, disk in enumerate(disks):
        own = [row for row in rows if row["envelope"] == disk]
        shift = 0.5 * (place + 0.5) / len(disks) - 0.25
        x = [quantity + shift for quantity in range(len(QUANTITIES)) for _ in own]
        y = [row[f"{name}_error"] for name in QUANTITIES for row in own]
        axes.plot(x, y, "o", color=_COLOURS[place % len(_COLOURS)], alpha=0.7, label=disk or "this disk at its own speed")
    for limit in (-max_error, max_error):
        axes.axhline(limit, color=GREY, ls="--", lw=0.8)
    axes.axhline(0, color=GREY, lw=0.8)
    axes.set_xticks(range(len(QUANTITIES)), [name.replace("_", " ") for name in QUANTITIES])
    axes.set_ylabel("twin / live - 1")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    legend(axes)
    return figure
