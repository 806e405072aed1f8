"""Misses of one global cache over a trace, replayed through the same policies that the live runtime uses.

An event is one token's whole top-k of one layer. Requests run one after another, as one session sees them: the cache starts
empty, prompt tokens warm it token by token, and only decoded tokens are counted. Belady knows the future and bounds every policy.
"""

from collections.abc import Callable, Sequence

import numpy as np
import polars as pl

from workbench.analysis.bootstrap import Interval, Resampler, ratio_of
from workbench.analysis.routes import Array, Routes
from workbench.analysis.workers import POOL_PAYS, completed
from workbench.simulate.replay import miss_counts


def capacity_records(routes: Routes, fraction: float) -> int:
    """Slots of a cache that holds `fraction` of all records."""
    return round(fraction * routes.num_records)


def missed_records(routes: Routes, capacity: int, policy: str, keep_cache: bool = True) -> Array:
    """`[N]` records that each token missed over all layers; `keep_cache=False` empties the cache before each request."""
    spans = [(0, len(routes.experts))] if keep_cache else routes.bounds
    keys = routes.experts + routes.num_experts * np.arange(routes.num_layers)[:, None]
    misses = [miss_counts(keys[a:b].reshape(-1, routes.top_k).tolist(), capacity, policy) for a, b in spans]
    return np.concatenate(misses).reshape(-1, routes.num_layers).sum(axis=1)


def by_request(routes: Routes, missed: Array) -> Array:
    """`[R]` records that each request's decoded tokens missed; `missed` is `[N]`."""
    counted = np.where(routes.decoded, missed, 0)
    return np.bincount(routes.request, weights=counted, minlength=routes.num_requests)


def by_step(routes: Routes, missed: Array) -> Array:
    """Mean misses of the first, second, ... decoded token over the requests that got that far."""
    steps = np.concatenate([np.arange(count) for count in routes.decoded_tokens])
    return np.bincount(steps, weights=missed[routes.decoded]) / np.bincount(steps)


def miss_curve(
    traces: Sequence[tuple[str, Routes, Sequence[str]]],
    fractions: Sequence[float],
    resampler: Resampler,
    *,
    record_bytes: int,
    keep_cache: bool = True,
    advance: Callable[[int], None] = lambda _: None,
) -> tuple[pl.DataFrame, dict[tuple[str, str, float], Array]]:
    """Misses per decoded token by trace, policy and capacity.

    Args:
        traces: name, trace and policies to replay on it; the measured trace and its controls.
        fractions: capacities as shares of all records.
        resampler: draws the same requests for all traces.
        record_bytes: bytes of one record, for the demand bytes of a token.
        keep_cache: whether a request starts with the cache of the request before it.
        advance: called with 1 after each replay.

    Returns the table and, by (trace, policy, fraction), the `[N]` misses of each token.
    """
    curves = [
        (name, routes, policy, fraction) for name, routes, policies in traces for policy in policies for fraction in fractions
    ]
    jobs = [(routes, capacity_records(routes, fraction), policy, keep_cache) for _, routes, policy, fraction in curves]
    num_accesses = sum(routes.experts.size for routes, *_ in jobs)
    found: dict[int, Array] = {}
    for index, counts in completed(missed_records, jobs, workers=None if num_accesses > POOL_PAYS else 1):
        found[index] = counts
        advance(1)
    rows = []
    for index, (name, routes, policy, fraction) in enumerate(curves):
        rate = resampler.ratio(by_request(routes, found[index]), routes.decoded_tokens)
        row = {"trace": name, "policy": policy, "fraction": fraction, "capacity_records": jobs[index][1]}
        rows.append(row | _rates(rate, routes, record_bytes))
    missed = {(name, policy, fraction): found[index] for index, (name, _, policy, fraction) in enumerate(curves)}
    return pl.DataFrame(rows), missed


def _rates(misses: Interval, routes: Routes, record_bytes: int) -> dict[str, float]:
    value = float(misses.value)
    return {
        "misses_per_token": value,
        "misses_per_token_low": float(misses.low),
        "misses_per_token_high": float(misses.high),
        "hit_rate": 1 - value / (routes.num_layers * routes.top_k),
        "demand_bytes_per_token": value * record_bytes,
    }


def curve_by_capacity(curve: pl.DataFrame) -> pl.DataFrame:
    """The misses of `miss_curve`, one row per capacity and one column per curve; bytes are LFRU's on the measured trace."""
    columns = {}
    for trace, policy in curve.select("trace", "policy").unique(maintain_order=True).iter_rows():
        part = curve.filter(trace=trace, policy=policy).sort("fraction")
        columns[policy if trace == "measured" else f"{policy}, {trace}"] = part["misses_per_token"]
    at = curve.filter(trace="measured", policy="lfru").sort("fraction")
    return at.select("fraction", "capacity_records").with_columns(**columns, lfru_bytes_per_token=at["demand_bytes_per_token"])


def miss_ratio(routes: Routes, missed: Array, control: Routes, control_missed: Array, resampler: Resampler) -> Interval:
    """Misses per decoded token divided by those of a control with the same tokens; both are resampled together."""
    return resampler.estimate(ratio_of, by_request(routes, missed), by_request(control, control_missed))


def belady_gap(routes: Routes, missed: dict[tuple[str, str, float], Array], resampler: Resampler) -> pl.DataFrame:
    """Misses of each policy divided by Belady's at the same capacity, on the measured trace; `missed` is from `miss_curve`.

    A capacity at which Belady misses nothing has no row.
    """
    rows = []
    for (trace, policy, fraction), counts in missed.items():
        best = missed.get((trace, "belady", fraction))
        if trace == "measured" and policy != "belady" and best is not None and by_request(routes, best).any():
            ratio = miss_ratio(routes, counts, routes, best, resampler)
            rows.append((policy, fraction, float(ratio.value), float(ratio.low), float(ratio.high)))
    names = ("fraction", "gap", "gap_low", "gap_high")
    schema = {"policy": pl.String, **dict.fromkeys(names, pl.Float64)}
    return pl.DataFrame(rows, schema, orient="row").sort("policy", "fraction")
