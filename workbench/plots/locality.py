"""Figures of Gate B, from the tables of `analysis.locality_tables` and `analysis.misses`."""

import polars as pl
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter, StrMethodFormatter

from workbench.plots.style import BLUE, GREEN, GREY, ORANGE, PURPLE, band, error_bars, layer_axis, legend, new_figure
from workbench.schema import Evidence

_CURVES = {
    # (trace, policy): colour, line, label
    ("uniform draws", "lfru"): (GREY, ":", "LFRU, uniform draws"),
    ("popularity draws", "lfru"): (GREY, "--", "LFRU, draws by popularity"),
    ("measured", "lru"): (ORANGE, "-", "LRU"),
    ("measured", "lfru"): (BLUE, "-", "LFRU"),
    ("measured", "belady"): (GREEN, "-", "Belady (knows the future)"),
}


def overlap_figure(overlap: pl.DataFrame, source: str) -> Figure:
    """Overlap of consecutive tokens' experts by layer, beside the overlap of random draws."""
    figure, axes = new_figure("Share of a token's experts that its predecessor used", evidence=Evidence.TRACE, source=source)
    layers = overlap["layer"].to_list()
    errors = error_bars(overlap, "overlap")
    axes.bar(layers, overlap["overlap"].to_list(), yerr=errors, color=BLUE, width=0.7, capsize=2, label="measured, 95 %")
    axes.plot(
        layers,
        overlap["overlap_popularity"].to_list(),
        color=ORANGE,
        marker="_",
        ls="none",
        ms=16,
        mew=2,
        label="draws by popularity",
    )
    axes.plot(layers, overlap["overlap_uniform"].to_list(), color=GREY, ls=":", label="uniform draws")
    layer_axis(axes)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    legend(axes)
    return figure


def union_figure(unions: pl.DataFrame, source: str) -> Figure:
    """Distinct experts per layer in blocks of B tokens."""
    figure, axes = new_figure("Distinct experts per layer in a block of B tokens", evidence=Evidence.TRACE, source=source)
    blocks = unions["block"].to_list()
    band(axes, blocks, unions["union_low"].to_list(), unions["union_high"].to_list(), BLUE)
    axes.plot(blocks, unions["union_disjoint"].to_list(), color=GREY, ls="-", lw=0.8, label="no expert shared")
    axes.plot(blocks, unions["union_uniform"].to_list(), color=GREY, ls=":", label="uniform draws")
    axes.plot(blocks, unions["union_popularity"].to_list(), color=PURPLE, ls="--", label="draws by popularity")
    axes.plot(blocks, unions["union"].to_list(), color=BLUE, marker="o", label="measured, 95 %")
    axes.set_xlabel("B, tokens in a block")
    axes.set_ylabel("experts")
    axes.set_xticks(blocks)
    legend(axes)
    return figure


def acceptance_figure(acceptance: pl.DataFrame, threshold: float, source: str) -> Figure:
    """Share of a block that must be committed before its union pays."""
    figure, axes = new_figure("Acceptance needed to break even on routed bytes", evidence=Evidence.TRACE, source=source)
    blocks, errors = acceptance["block"].to_list(), error_bars(acceptance, "acceptance_needed")
    axes.bar(blocks, acceptance["acceptance_needed"].to_list(), yerr=errors, color=BLUE, width=0.6, capsize=3)
    axes.axhline(threshold, color=ORANGE, ls="--", label=f"threshold: at most {threshold:.0%} for some B")
    axes.set_xlabel("B, tokens in a block")
    axes.set_ylabel("U_B / (top-k * B)")
    axes.set_xticks(blocks)
    axes.set_ylim(0, 1.05)
    legend(axes)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    return figure


def miss_figure(curve: pl.DataFrame, at_fraction: float, source: str) -> Figure:
    """Misses per decoded token by capacity and policy."""
    figure, axes = new_figure("Records read per decoded token", evidence=Evidence.SIMULATED, source=source)
    for (trace, policy), (colour, line, label) in _CURVES.items():
        part = curve.filter(pl.col("trace") == trace, pl.col("policy") == policy).sort("fraction")
        if part.is_empty():
            continue
        x = part["fraction"].to_list()
        band(axes, x, part["misses_per_token_low"].to_list(), part["misses_per_token_high"].to_list(), colour)
        axes.plot(x, part["misses_per_token"].to_list(), color=colour, ls=line, marker=".", label=label)
    axes.axvline(at_fraction, color="#bbbbbb", lw=0.8, zorder=0)
    axes.set_xlabel("cache, share of all records")
    axes.set_ylabel("misses per token")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    legend(axes)
    return figure


def reuse_figure(reuse: pl.DataFrame, source: str) -> Figure:
    """Running share of uses by distance from the record's previous use; the gap to 100 % is first uses."""
    figure, axes = new_figure("Uses of a record by tokens since its previous use", evidence=Evidence.TRACE, source=source)
    known = reuse.drop_nulls("distance_tokens")
    axes.step(known["distance_tokens"].to_list(), known["running_share"].to_list(), where="post", color=BLUE)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.set_xlabel("distance, tokens")
    axes.set_ylabel("share of all uses")
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    return figure


def skew_figure(skew: pl.DataFrame, hot_share: float, source: str) -> Figure:
    """Share of uses that the hottest records of each layer serve."""
    title = f"Share of uses served by a layer's hottest {hot_share:.0%} of records"
    figure, axes = new_figure(title, evidence=Evidence.TRACE, source=source)
    errors = error_bars(skew, "hot_share")
    axes.bar(skew["layer"].to_list(), skew["hot_share"].to_list(), yerr=errors, color=BLUE, width=0.7, capsize=2)
    axes.axhline(hot_share, color=ORANGE, ls=":", label="even use")
    legend(axes)
    layer_axis(axes)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    return figure
