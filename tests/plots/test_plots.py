import polars as pl
import pytest

from workbench.plots import locality as plots
from workbench.plots.style import ARM_COLOURS, error_bars, save_figure
from workbench.schema import Evidence

SOURCE = "mini, 3 requests"
INTERVAL = ("", "_low", "_high")


def with_interval(name, values, spread=0.1):
    return {f"{name}{end}": [v + spread * (i - 1) for v in values] for end, i in zip(INTERVAL, (1, 0, 2), strict=True)}


LAYERS = {"layer": [0, 1]}
FRAMES = {
    "overlap": pl.DataFrame(
        {**LAYERS, **with_interval("overlap", [0.2, 0.4]), "overlap_uniform": 0.08, "overlap_popularity": 0.1}
    ),
    "unions": pl.DataFrame(
        {
            "block": [2, 3],
            **with_interval("union", [15.0, 20.0]),
            "union_uniform": [19.0, 27.0],
            "union_popularity": [18.0, 25.0],
            "union_disjoint": [20, 30],
        }
    ),
    "acceptance": pl.DataFrame({"block": [2, 3], **with_interval("acceptance_needed", [0.8, 0.7])}),
    "reuse": pl.DataFrame({"distance_tokens": [1, 8, None], "running_share": [0.3, 0.6, 1.0]}),
    "skew": pl.DataFrame({**LAYERS, **with_interval("hot_share", [0.3, 0.5])}),
    "misses": pl.DataFrame(
        {
            "trace": ["measured", "measured", "uniform draws", "uniform draws"],
            "policy": ["lfru"] * 4,
            "fraction": [0.25, 0.5, 0.25, 0.5],
            **with_interval("misses_per_token", [40.0, 20.0, 60.0, 40.0]),
        }
    ),
}

FIGURES = {
    "overlap": (lambda: plots.overlap_figure(FRAMES["overlap"], SOURCE), Evidence.TRACE),
    "unions": (lambda: plots.union_figure(FRAMES["unions"], SOURCE), Evidence.TRACE),
    "acceptance": (lambda: plots.acceptance_figure(FRAMES["acceptance"], 0.8, SOURCE), Evidence.TRACE),
    "reuse": (lambda: plots.reuse_figure(FRAMES["reuse"], SOURCE), Evidence.TRACE),
    "skew": (lambda: plots.skew_figure(FRAMES["skew"], 0.1, SOURCE), Evidence.TRACE),
    "misses": (lambda: plots.miss_figure(FRAMES["misses"], 0.25, SOURCE), Evidence.SIMULATED),
}


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_says_what_it_rests_on(name):
    make, evidence = FIGURES[name]
    figure = make()
    words = [text.get_text() for text in figure.texts]
    assert any(f"evidence: {evidence.value}" in text and SOURCE in text for text in words)
    [axes] = figure.axes
    assert axes.get_title(loc="left")


def test_the_miss_figure_draws_each_curve_it_is_given_and_no_other():
    [axes] = FIGURES["misses"][0]().axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["LFRU, uniform draws", "LFRU"]


def test_an_interval_end_on_the_wrong_side_of_its_value_is_no_error_bar():
    table = pl.DataFrame({"x": [1.0], "x_low": [1.1], "x_high": [1.3]})
    below, above = error_bars(table, "x")
    assert below == [0.0]
    assert above == [pytest.approx(0.3)]


def test_the_same_figure_gives_the_same_file(tmp_path):
    for name in ("one", "two"):
        save_figure(FIGURES["unions"][0](), tmp_path / "figures" / f"{name}.png")
    one, two = ((tmp_path / "figures" / f"{name}.png").read_bytes() for name in ("one", "two"))
    assert one == two


def test_arms_have_the_colours_that_mlflow_gives_them():
    from workbench.tracking import filing

    assert ARM_COLOURS == filing.ARM_COLOURS
