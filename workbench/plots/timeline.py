"""One generating pass as a figure: where compute waited, and the state of every read meanwhile."""

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from workbench.analysis.timeline import EVALUATE, IN_FLIGHT, QUEUED, READBACK, READS, STAGE, TOKEN, UNSEEN, WAIT
from workbench.plots.style import BLUE, GREEN, GREY, ORANGE, PURPLE
from workbench.schema import Evidence
from workbench.units import NS_PER_MS

RED = "#e45756"
_CLASS_COLOURS = {"expert": RED, "ple": ORANGE}
_STAGE_COLOURS = {
    "ple": ORANGE,
    "gdn": BLUE,
    "qsa": "#72a5d8",
    "router": PURPLE,
    "shared": "#b5cf6b",
    "gate_up": GREEN,
    "down": "#7fcdbb",
    "head": GREY,
}
_PHASE_STRENGTH = {QUEUED: 0.25, IN_FLIGHT: 1.0, UNSEEN: 0.5}
_MOST_LANES = 48


def timeline_figure(spans: pl.DataFrame, title: str, *, evidence: Evidence, source: str) -> Figure:
    """Bars in time: stages, read-backs and exposed waits above, one row per lane of reads below."""
    zero_ns = spans.filter(track=TOKEN)["start_ns"][0]
    length_ms = (spans.filter(track=TOKEN)["end_ns"][0] - zero_ns) / NS_PER_MS
    spans = spans.with_columns(
        start_ms=(pl.col("start_ns") - zero_ns) / NS_PER_MS,
        length_ms=(pl.col("end_ns") - pl.col("start_ns")) / NS_PER_MS,
    )
    rows = _rows(spans)
    figure = Figure(figsize=(9.6, 1.6 + 0.19 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    for place, (track, lane) in enumerate(rows):
        part = spans.filter(pl.col("track") == track, pl.col("lane").fill_null(0) == lane)
        _draw(axes, place, part, track)
    axes.set_yticks(*_ticks(rows), fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, length_ms)
    axes.set_xlabel("milliseconds since the previous pass ended")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    _legend(figure, spans)
    figure.supxlabel(f"evidence: {evidence.value}   |   {source}", fontsize=8, color="#555555", x=0.99, ha="right")
    return figure


def _rows(spans: pl.DataFrame) -> list[tuple[str, int]]:
    """Tracks and lanes from top to bottom."""
    rows = [(track, 0) for track in (STAGE, EVALUATE, READBACK, WAIT) if track in spans["track"]]
    for track in READS.values():
        lanes = spans.filter(track=track)["lane"].n_unique()
        rows += [(track, lane) for lane in range(min(lanes, _MOST_LANES))]
    return rows


def _draw(axes: Axes, place: int, part: pl.DataFrame, track: str) -> None:
    if track in READS.values():
        part = part.drop_nulls("phase")
    for span in part.iter_rows(named=True):
        colour, strength = _look(span, track)
        axes.barh(place, span["length_ms"], left=span["start_ms"], height=0.82, color=colour, alpha=strength, linewidth=0)


def _look(span: dict[str, object], track: str) -> tuple[str, float]:
    """Colour and opacity."""
    if track == STAGE:
        return _STAGE_COLOURS[str(span["name"])], 1.0
    if track in (READBACK, EVALUATE):
        return "#222222", 1.0
    colour = _CLASS_COLOURS[str(span["store"])]
    if span["intent"] == "predicted":
        colour = GREY
    return colour, _PHASE_STRENGTH.get(str(span["phase"]), 1.0)


def _ticks(rows: list[tuple[str, int]]) -> tuple[list[int], list[str]]:
    """One label per track, at its first row."""
    return [place for place, (_, lane) in enumerate(rows) if lane == 0], [track for track, lane in rows if lane == 0]


def _legend(figure: Figure, spans: pl.DataFrame) -> None:
    stages = [name for name in _STAGE_COLOURS if name in spans.filter(track=STAGE)["name"]]
    marks = [Patch(color=_STAGE_COLOURS[name], label=name.replace("_", "+")) for name in stages]
    marks += [Patch(color=_CLASS_COLOURS[store], label=READS[store]) for store in READS]
    marks += [Patch(color=GREY, label="predicted reads")] if "predicted" in spans["intent"] else []
    phases = [Patch(color=RED, alpha=strength, label=phase) for phase, strength in _PHASE_STRENGTH.items()]
    figure.legend(handles=marks + phases, fontsize=7, ncols=7, loc="outside lower left", frameon=False)
