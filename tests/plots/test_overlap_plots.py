"""Gate C's figures and the timeline: what is drawn is what the tables say, and the evidence stands in the corner."""

import polars as pl
import pytest

from workbench.analysis.timeline import SPAN_SCHEMA
from workbench.plots import overlap
from workbench.plots.timeline import timeline_figure
from workbench.schema import Evidence

MS = 1_000_000


def widths(axes):
    return [round(patch.get_width(), 6) for patch in axes.patches]


def corner(figure):
    return figure._supxlabel.get_text()


@pytest.fixture
def means():
    """Two disks, control and candidate of one comparison."""
    rows = [
        {"disk": disk, "label": f"waves: {arm}", "compute_ms": 6.0, "expert_wait_ms": wait, "ple_wait_ms": 0.5}
        for disk in ("slow", "fast")
        for arm, wait in (("barrier", 4.0), ("4", 1.0))
    ]
    return pl.DataFrame(rows)


def test_waits_are_stacked_by_class_with_a_panel_a_disk(means):
    figure = overlap.wait_figure(means, Evidence.EMULATED, "mini")
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["slow", "fast"]
    for axes in figure.axes:
        assert widths(axes) == [4.0, 1.0, 0.5, 0.5]
        assert [round(patch.get_x(), 6) for patch in axes.patches] == [0, 0, 4.0, 1.0]
    assert corner(figure) == "evidence: emulated   |   mini"


def test_a_waterfall_adds_up_to_the_token(means):
    figure = overlap.waterfall_figure(means.filter(disk="slow"), Evidence.PHYSICAL, "slice")
    [axes] = figure.axes
    ends = [round(patch.get_x() + patch.get_width(), 6) for patch in axes.patches[-2:]]
    assert ends == [10.5, 7.5]
    assert corner(figure).startswith("evidence: physical")


def test_the_crossover_shows_both_modes_and_the_chosen_one():
    rows = [(tile, mode, tile * factor) for tile in (16, 256) for mode, factor in (("micro", 1.0), ("macro", 0.5), ("auto", 0.6))]
    figure = overlap.crossover_figure(pl.DataFrame(rows, schema=["tile", "mode", "seconds"], orient="row"), "a layer")
    [axes] = figure.axes
    drawn = {line.get_label(): list(line.get_ydata()) for line in axes.lines}
    assert drawn == {
        "micro: the tile's union": [16, 256],
        "macro: the whole layer": [8, 128],
        "auto: the chosen mode": [9.6, 153.6],
    }
    assert corner(figure).startswith("evidence: emulated")


def test_rates_are_over_those_alone():
    rates = pl.DataFrame(
        {"round": [0, 1], "steps_alone_per_s": [10, 10], "steps_beside_per_s": [9, 8], "read_alone_gbps": [2.0, 2.0],
         "read_beside_gbps": [1.0, 2.0]}
    )  # fmt: skip
    [axes] = overlap.overlap_figure(rates, "slice").axes
    assert [list(line.get_ydata()) for line in axes.lines[:2]] == [[0.9, 0.8], [0.5, 1.0]]


def test_a_timeline_has_a_row_a_track_and_a_lane():
    rows = [
        {"track": "token", "name": "token 3", "start_ns": 100 * MS, "end_ns": 110 * MS},
        {"track": "stages", "name": "gdn", "start_ns": 100 * MS, "end_ns": 104 * MS, "layer": 0},
        {"track": "exposed wait", "name": "layer 0", "store": "expert", "start_ns": 104 * MS, "end_ns": 106 * MS},
        {"track": "read-back", "name": "layer 0", "start_ns": 103 * MS, "end_ns": 104 * MS},
        *(
            {"track": "expert reads", "lane": lane, "phase": phase, "store": "expert", "intent": "exact", "start_ns": start * MS,
             "end_ns": end * MS}
            for lane in (0, 1)
            for phase, start, end in ((None, 102, 106), ("queued", 102, 103), ("in flight", 103, 106))
        ),
    ]  # fmt: skip
    figure = timeline_figure(pl.DataFrame(rows, schema=SPAN_SCHEMA), "Token 3", evidence=Evidence.EMULATED, source="mini")
    [axes] = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["stages", "read-back", "exposed wait", "expert reads"]
    assert axes.get_xlim() == (0, 10)
    assert widths(axes) == [4, 1, 2, 1, 3, 1, 3]
    assert corner(figure) == "evidence: emulated   |   mini"
    assert {text.get_text() for text in figure.legends[0].get_texts()} >= {"gdn", "expert reads", "queued", "in flight"}
