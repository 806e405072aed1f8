"""Figures of the report as inline SVG: two colours for arms, every mark with a title, nothing loaded from anywhere."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

from workbench.report.waterfall import Waterfall

COLOURS = {
    "before": "#4c78a8",
    "behind": "#9ecae9",
    "host": "#bab0ac",
    "predictor": "#b279a2",
    "expert": "#e45756",
    "ple": "#f58518",
}
_WIDTH, _LEFT, _RIGHT = 760, 12, 110
_ROW = 22


def token_bar(fall: Waterfall, longest_ms: float) -> Markup:
    """One token as a stacked bar on a scale that ends at `longest_ms`, with the bound as a line."""
    scale = (_WIDTH - _LEFT - _RIGHT) / longest_ms
    marks, x = [], float(_LEFT)
    for part in fall.parts:
        width = part.ms * scale
        if width > 0:
            title = f"{part.name}: {part.ms:.2f} ms"
            marks.append(_rect(x, 14, width, 26, COLOURS[part.key], title))
            x += width
    marks.append(_text(x + 6, 32, f"{fall.token_ms:.1f} ms per token"))
    if fall.bound_ms is not None:
        at = _LEFT + fall.bound_ms * scale
        marks.append(_line(at, 6, at, 48, "#222", dash="4 3"))
        marks.append(_text(at + 4, 60, f"bound {fall.bound_ms:.1f} ms", size=11))
    return _svg(66, marks, f"Time of one decoded token, {fall.token_ms:.1f} ms")


def is_known(ratio: float | None) -> bool:
    """True for a ratio that has a place in a plot."""
    return ratio is not None and math.isfinite(ratio)


def cohort_plot(cohorts: Sequence[Mapping[str, Any]], metrics: Mapping[str, float], thresholds: Sequence[float]) -> Markup:
    """Ratio B / A of every cohort (invalid ones hollow), and the estimate with its interval below."""
    rows = [row for row in cohorts if is_known(row.get("ratio"))]
    ends = [metrics[name] for name in ("effect/ratio", "effect/ratio_low", "effect/ratio_high") if name in metrics]
    spread = [*(row["ratio"] for row in rows if row["counts"]), *ends, *thresholds, 1.0]
    low, high = min(spread), max(spread)
    margin = max(0.12 * (high - low), 0.005)
    low, high = low - margin, high + margin
    left, right = 96, _WIDTH - 150

    def place(ratio: float) -> float:
        return left + (min(max(ratio, low), high) - low) / (high - low) * (right - left)

    bottom = 20 + _ROW * (len(rows) + 1)
    marks = [_line(place(at), 8, place(at), bottom, "#777", dash="2 3") for at in thresholds if at != 1.0]
    marks.append(_line(place(1.0), 8, place(1.0), bottom, "#222"))
    for i, row in enumerate(rows):
        marks += _cohort_marks(row, place(row["ratio"]), 20 + i * _ROW, right)
    if len(ends) == 3:
        marks += _estimate_marks(ends, [place(end) for end in ends], bottom - 6)
    marks.append(_text(place(1.0), bottom + 16, "no difference", anchor="middle", size=11))
    return _svg(bottom + 24, marks, "Ratio of B to A by cohort")


def _cohort_marks(row: Mapping[str, Any], x: float, y: float, right: float) -> list[Markup]:
    counts = row["counts"]
    title = f"cohort {row['cohort']}: ratio {row['ratio']:.4f}" + ("" if counts else f", not valid: {row['reasons']}")
    note = f"{row['ratio']:.4f}" if counts else str(row["reasons"]).partition(" ")[0]
    dot = Markup('<circle cx="{:.1f}" cy="{:.1f}" r="5" fill="{}" stroke="{}"><title>{}</title></circle>')
    fill, edge = ("#f58518", "#f58518") if counts else ("white", "#999")
    return [
        _text(8, y + 4, f"cohort {row['cohort']}"),
        dot.format(x, y, fill, edge, title),
        _text(right + 12, y + 4, note, colour="#222" if counts else "#777"),
    ]


def _estimate_marks(ends: Sequence[float], places: Sequence[float], y: float) -> list[Markup]:
    (ratio, low, high), (x, x_low, x_high) = ends, places
    bar = _line(x_low, y, x_high, y, "#222", width=3)
    diamond = Markup('<path d="M{0:.1f} {2:.1f}l7 7l-7 7l-7-7z" fill="#222"><title>{1}</title></path>')
    title = f"ratio {ratio:.4f}, interval {low:.4f} to {high:.4f}"
    return [_text(8, y + 4, "estimate"), bar, diamond.format(x, title, y - 7), _text(_WIDTH - 138, y + 4, f"{ratio:.4f}")]


def _svg(height: float, marks: Sequence[Markup], label: str) -> Markup:
    frame = Markup('<svg viewBox="0 0 {} {:.0f}" role="img" aria-label="{}">{}</svg>')
    return frame.format(_WIDTH, height, label, Markup("").join(marks))


def _rect(x: float, y: float, width: float, height: float, fill: str, title: str) -> Markup:
    mark = Markup('<rect x="{:.1f}" y="{}" width="{:.1f}" height="{}" fill="{}"><title>{}</title></rect>')
    return mark.format(x, y, width, height, fill, title)


def _line(x1: float, y1: float, x2: float, y2: float, stroke: str, *, width: int = 1, dash: str = "") -> Markup:
    mark = Markup('<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" stroke="{}" stroke-width="{}" stroke-dasharray="{}"/>')
    return mark.format(x1, y1, x2, y2, stroke, width, dash or "none")


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12, colour: str = "#222") -> Markup:
    mark = Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}" font-size="{}" fill="{}">{}</text>')
    return mark.format(x, y, anchor, size, colour, escape(text))
