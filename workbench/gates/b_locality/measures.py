"""What Gate B measures on a route trace: ratios to independent draws with their intervals, and every table beside them."""

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from workbench.analysis import locality_tables as tables
from workbench.analysis.bootstrap import Interval, Resampler
from workbench.analysis.draws import drawn_union, popularity_draws, uniform_draws, uniform_usage
from workbench.analysis.locality import LocalitySums, locality_sums
from workbench.analysis.misses import belady_gap, by_step, miss_curve, miss_ratio
from workbench.analysis.routes import Array, Routes
from workbench.analysis.slot_value import slot_value_table
from workbench.gates.b_locality.config import LocalityConfig
from workbench.progress import progress

MEASURED, UNIFORM, POPULARITY = "measured", "uniform draws", "popularity draws"


@dataclass(frozen=True, kw_only=True)
class Measures:
    """Ratios that the clauses turn on, and every table."""

    miss_ratio: Interval
    """LFRU's misses, routes / uniform draws, at the capacity of B.locality."""
    miss_ratio_popularity: Interval
    """LFRU's misses, routes / draws by measured popularity: the gain from order in time beyond skew."""
    union_ratio: Interval
    """Distinct experts of 4 tokens, routes / uniform draws."""
    acceptance: Interval
    """The smallest acceptance needed over the block sizes."""
    tables: Mapping[str, pl.DataFrame]
    """By name: overlap, unions, acceptance, break_even, unique, reuse, reuse_within, skew, misses, belady_gap, slot_value."""
    metrics: Mapping[str, float]
    """Metrics by names of the registry."""
    misses_by_step: Array
    """Mean LFRU misses of the first, second, ... decoded token."""


def measure(routes: Routes, config: LocalityConfig, record_bytes: int) -> Measures:
    """Everything that Gate B measures on a trace."""
    resampler = Resampler(routes.num_requests, num_resamples=config.resamples, seed=config.seed)
    sums = locality_sums(routes)
    controls = {UNIFORM: uniform_draws(routes, config.seed), POPULARITY: popularity_draws(routes, config.seed)}
    policies = tuple(dict.fromkeys((*config.policies, "lfru", "belady")))
    traces = [(MEASURED, routes, policies), *((name, control, ("lfru",)) for name, control in controls.items())]
    with progress("replaying caches", (len(policies) + len(controls)) * len(config.capacities)) as advance:
        curve, missed = miss_curve(
            traces, config.capacities, resampler, record_bytes=record_bytes, keep_cache=config.keep_cache, advance=advance
        )
    lfru = {name: missed[name, "lfru", config.at_fraction] for name, *_ in traces}
    ratios = {name: miss_ratio(routes, lfru[MEASURED], controls[name], lfru[name], resampler) for name in controls}
    caches = {
        "misses": curve,
        "belady_gap": belady_gap(routes, missed, resampler),
        "slot_value": slot_value_table(routes, config.at_fraction, resampler),
    }
    made = _tables(routes, sums, resampler) | caches
    return Measures(
        miss_ratio=ratios[UNIFORM],
        miss_ratio_popularity=ratios[POPULARITY],
        union_ratio=_union_ratio(routes, sums, resampler),
        acceptance=tables.least_acceptance_needed(sums, routes.top_k, resampler),
        tables=made,
        metrics=_metrics(made, sums, config.at_fraction),
        misses_by_step=by_step(routes, lfru[MEASURED]),
    )


def _tables(routes: Routes, sums: LocalitySums, resampler: Resampler) -> dict[str, pl.DataFrame]:
    unions = tables.union_table(routes, sums, resampler)
    return {
        "overlap": tables.overlap_table(routes, sums, resampler),
        "unions": unions,
        "acceptance": tables.acceptance_table(sums, routes.top_k, resampler),
        "break_even": tables.break_even_table(unions, routes.top_k),
        "unique": tables.unique_table(routes, sums, resampler),
        "reuse": tables.reuse_table(sums),
        "reuse_within": tables.reuse_within_table(sums, resampler),
        "skew": tables.skew_table(routes, sums, resampler),
    }


def _union_ratio(routes: Routes, sums: LocalitySums, resampler: Resampler) -> Interval:
    union = tables.mean_union(sums, 4, resampler)
    drawn = drawn_union(uniform_usage(1, routes.num_experts, routes.top_k), 4).item()
    return Interval(value=union.value / drawn, low=union.low / drawn, high=union.high / drawn)


def _metrics(made: Mapping[str, pl.DataFrame], sums: LocalitySums, at_fraction: float) -> dict[str, float]:
    at = made["misses"].filter(trace=MEASURED, policy="lfru", fraction=at_fraction).row(0, named=True)
    return {
        "routing/prev_token_overlap": made["overlap"]["overlap"].mean(),
        **{f"routing/union_b{row['block']}": row["union"] for row in made["unions"].iter_rows(named=True)},
        "routing/unique_per_layer": made["unique"]["unique"].mean(),
        "routing/reuse_distance_p50": tables.median_reuse_distance(sums),
        "routing/misses_per_token": at["misses_per_token"],
        "routing/decode_hit_rate": at["hit_rate"],
    }
