"""Measures of locality with their 95 % intervals, as tables, each beside the same measure of independent draws.

`*_uniform` columns are draws with all experts equally likely, `*_popularity` columns keep each expert's measured popularity:
the difference from the latter is temporal order, the rest is skew.
"""

from collections.abc import Callable, Sequence

import numpy as np
import polars as pl

from workbench.analysis.bootstrap import Interval, Resampler, ratio_of
from workbench.analysis.draws import drawn_overlap, drawn_union, uniform_usage
from workbench.analysis.locality import FIRST_USE, LocalitySums
from workbench.analysis.routes import Array, Routes
from workbench.bounds import union_break_even

HOT_SHARE = 0.10
"""The share of a layer's records that `skew_table` calls hot."""


def overlap_table(routes: Routes, sums: LocalitySums, resampler: Resampler) -> pl.DataFrame:
    """Previous-token overlap by layer: share of a token's experts that its predecessor selected as well."""
    overlap = resampler.ratio(sums.overlap / routes.top_k, sums.pairs)
    uniform = uniform_usage(routes.num_layers, routes.num_experts, routes.top_k)
    return pl.DataFrame(
        {
            "layer": routes.layers,
            **_columns("overlap", overlap),
            "overlap_uniform": drawn_overlap(uniform, routes.top_k),
            "overlap_popularity": drawn_overlap(routes.usage, routes.top_k),
        }
    )


def mean_overlap(routes: Routes, sums: LocalitySums, resampler: Resampler) -> Interval:
    """Previous-token overlap over all layers."""
    return resampler.ratio(sums.overlap.mean(axis=1) / routes.top_k, sums.pairs)


def union_table(routes: Routes, sums: LocalitySums, resampler: Resampler) -> pl.DataFrame:
    """Distinct experts per layer in blocks of B tokens, mean over layers."""
    uniform = uniform_usage(routes.num_layers, routes.num_experts, routes.top_k)
    rows = []
    for block in sums.unions:
        union = mean_union(sums, block, resampler)
        by_chance = float(drawn_union(uniform, block).mean())
        rows.append(
            {
                "block": block,
                **_cells("union", union),
                "union_uniform": by_chance,
                "union_popularity": float(drawn_union(routes.usage, block).mean()),
                "union_disjoint": routes.top_k * block,
                "ratio_to_uniform": float(union.value) / by_chance,
            }
        )
    return pl.DataFrame(rows)


def acceptance_table(sums: LocalitySums, top_k: int, resampler: Resampler) -> pl.DataFrame:
    """Share of a block's tokens that must be committed for its union to break even, `U_B / (top_k * B)`."""
    rows = [
        {"block": block, **_cells("acceptance_needed", acceptance_needed(sums, block, top_k, resampler))} for block in sums.unions
    ]
    return pl.DataFrame(rows)


def mean_union(sums: LocalitySums, block: int, resampler: Resampler) -> Interval:
    """`U_B`: distinct experts per layer in a block of B tokens, mean over blocks and layers."""
    return resampler.ratio(sums.unions[block].mean(axis=1), sums.blocks[block])


def acceptance_needed(sums: LocalitySums, block: int, top_k: int, resampler: Resampler) -> Interval:
    """The figure of `acceptance_table` for one block size."""
    return resampler.ratio(sums.unions[block].mean(axis=1) / (top_k * block), sums.blocks[block])


def least_acceptance_needed(sums: LocalitySums, top_k: int, resampler: Resampler) -> Interval:
    """The smallest acceptance needed over all block sizes; the block is chosen anew in each resample."""
    sizes = list(sums.unions)
    unions = np.stack([sums.unions[block].mean(axis=1) / (top_k * block) for block in sizes], axis=1)
    counts = np.stack([sums.blocks[block] for block in sizes], axis=1)
    return resampler.estimate(lambda union, count: np.nanmin(ratio_of(union, count), axis=-1), unions, counts)


def break_even_table(unions: pl.DataFrame, top_k: int, tau_step: float = 0.5) -> pl.DataFrame:
    """Whether `U_B < top_k * tau` by block and tau: routed bytes per committed token against plain decode's.

    `byte_ratio` is `U_B / (top_k * tau)`: below 1 the block moves fewer bytes. `unions` is the frame of `union_table`.
    """
    rows = [
        {
            "block": block,
            "tau": tau,
            "union": union,
            "union_break_even": union_break_even(tau, top_k),
            "byte_ratio": union / union_break_even(tau, top_k),
            "holds": union < union_break_even(tau, top_k),
        }
        for block, union in unions.select("block", "union").iter_rows()
        for tau in _steps(1.0, block, tau_step)
    ]
    return pl.DataFrame(rows)


def unique_table(routes: Routes, sums: LocalitySums, resampler: Resampler) -> pl.DataFrame:
    """Distinct experts by layer over one request's decode, mean over requests, beside draws of the same length."""
    unique = resampler.ratio(sums.unique, np.ones(routes.num_requests))
    length = round(float(sums.tokens.mean()))
    uniform = uniform_usage(routes.num_layers, routes.num_experts, routes.top_k)
    return pl.DataFrame(
        {
            "layer": routes.layers,
            **_columns("unique", unique),
            "unique_uniform": drawn_union(uniform, length),
            "unique_popularity": drawn_union(routes.usage, length),
        }
    )


def skew_table(routes: Routes, sums: LocalitySums, resampler: Resampler) -> pl.DataFrame:
    """By layer: share of uses that the hottest tenth of its records serve, and usage entropy divided by `ln E`."""
    hot = max(1, round(HOT_SHARE * routes.num_experts))
    share = _by_layer(resampler, sums.uses, lambda uses: _hot_share(uses, hot))
    entropy = _by_layer(resampler, sums.uses, _normalised_entropy)
    return pl.DataFrame({"layer": routes.layers, **_columns("hot_share", share), **_columns("entropy", entropy)})


def reuse_table(sums: LocalitySums) -> pl.DataFrame:
    """Uses by distance in tokens from the record's previous use in the request, with their running share of all uses.

    The last row, without a distance, holds first uses.
    """
    counts = sums.reuse.sum(axis=0)
    distances = np.flatnonzero(counts[1:]) + 1
    uses = np.append(counts[distances], counts[FIRST_USE])
    return pl.DataFrame(
        {"distance_tokens": [*distances.tolist(), None], "uses": uses, "running_share": uses.cumsum() / counts.sum()}
    )


def reuse_within_table(
    sums: LocalitySums, resampler: Resampler, distances: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128)
) -> pl.DataFrame:
    """Share of all uses whose record the request had used within so many tokens before."""
    uses = sums.reuse.sum(axis=1)
    rows = [
        {"within_tokens": distance, **_cells("share", resampler.ratio(sums.reuse[:, 1 : distance + 1].sum(axis=1), uses))}
        for distance in distances
    ]
    return pl.DataFrame(rows)


def median_reuse_distance(sums: LocalitySums) -> float:
    """Median tokens between two uses of a record, first uses left out; NaN when nothing is used twice."""
    counts = sums.reuse.sum(axis=0)[1:]
    if not counts.any():
        return float("nan")
    return float(np.searchsorted(counts.cumsum(), counts.sum() / 2) + 1)


def _hot_share(uses: Array, hot: int) -> Array:
    hottest = np.partition(uses, -hot, axis=-1)[..., -hot:]
    return hottest.sum(axis=-1) / uses.sum(axis=-1)


def _normalised_entropy(uses: Array) -> Array:
    share = uses / uses.sum(axis=-1, keepdims=True)
    logs = np.log(share, out=np.zeros_like(share), where=share > 0)
    return -(share * logs).sum(axis=-1) / np.log(uses.shape[-1])


def _by_layer(resampler: Resampler, uses: Array, statistic: Callable[[Array], Array]) -> Interval:
    """Interval of a statistic by layer, one layer at a time: resamples x layers x experts of a large model exceed memory."""
    layers = [resampler.estimate(statistic, uses[:, layer]) for layer in range(uses.shape[1])]
    return Interval(
        value=np.array([e.value for e in layers]), low=np.array([e.low for e in layers]), high=np.array([e.high for e in layers])
    )


def _columns(name: str, estimate: Interval) -> dict[str, Array]:
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def _cells(name: str, estimate: Interval) -> dict[str, float]:
    return {column: float(value) for column, value in _columns(name, estimate).items()}


def _steps(first: float, last: float, step: float) -> Sequence[float]:
    return [float(value) for value in np.arange(first, last + step / 2, step)]
