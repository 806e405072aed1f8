"""Detectors that run on every run: each names one way in which good-looking figures hide that nothing was gained."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

import numpy as np
import polars as pl

from workbench.schema.events import PASS_COLUMNS, Events, rows_of
from workbench.schema.generated import Intervals, generated, generated_tokens
from workbench.units import GB, NS_PER_US

EXPOSED_LIMIT = 0.20
"""Share of token time that exposed waits may take while the hit rate or the bandwidth looks good."""
HIGH = 0.80
"""A hit rate, or a share of the known bandwidth, that looks good."""
MIN_READS = 200
"""Exact reads on each side before their p99 are compared."""
WORSE = 1.10
"""Ratio of p99 that is worth a word."""
MORE_BYTES = 1.05
"""Ratio of bytes per token that is worth a word."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a detector saw."""

    code: str
    """Its name."""
    statement: str
    """In words, with figures."""

    def row(self) -> dict[str, str]:
        """For a table."""
        return asdict(self)


def run_detectors(
    events: Events,
    metrics: Mapping[str, float],
    *,
    bandwidth_bytes_per_s: float = math.inf,
    control: Events | None = None,
) -> list[Finding]:
    """Findings on a run.

    Args:
        events: its events.
        metrics: its metrics.
        bandwidth_bytes_per_s: what the disk can do, where it is known from elsewhere.
        control: events of the same run without what is tested, where there are such.
    """
    found = [
        *_waiting_behind_hits(rows_of(events, ("token", "mark", "wait"), PASS_COLUMNS), metrics, bandwidth_bytes_per_s),
        *_exact_reads_slower(events, control),
        *_more_bytes(events, control),
        *_foreign_ids_executed(events),
        *_wait_guards_more(events),
    ]
    return [Finding(code=code, statement=statement) for code, statement in found]


def _waiting_behind_hits(
    events: pl.DataFrame, metrics: Mapping[str, float], bandwidth_bytes_per_s: float
) -> Iterator[tuple[str, str]]:
    """Hit rate or bandwidth high while compute stands still."""
    intervals = Intervals.of(events)
    if not intervals.time_ns:
        return
    exposed = intervals.inside(events.filter(kind="wait"))["duration_ns"].sum() / intervals.time_ns
    if exposed <= EXPOSED_LIMIT:
        return
    hit_rate = metrics.get("routing/decode_hit_rate", 0.0)
    if hit_rate >= HIGH:
        yield "waiting_behind_hits", f"hit rate {hit_rate:.0%}, yet exposed waits take {exposed:.0%} of token time"
    reached = metrics.get("storage/expert_bandwidth_gbps", 0.0) * GB / bandwidth_bytes_per_s
    if reached >= HIGH:
        reason = f"{reached:.0%} of the known bandwidth, yet exposed waits take {exposed:.0%} of token time"
        yield "waiting_behind_bandwidth", reason


def _exact_reads_slower(events: Events, control: Events | None) -> Iterator[tuple[str, str]]:
    """P0 p99 worse with speculation on: against the control, else against reads sent while no prediction was in flight."""
    predicted = _tickets(events, "predicted")
    if predicted.height == 0:
        return
    exact = _tickets(events, "exact")
    latency_us = _latency_us(exact)
    if control is not None:
        beside, alone, where = latency_us, _latency_us(_tickets(control, "exact")), "in the control"
    else:
        crowded = _inside(exact["submit_ns"].to_numpy(), predicted["submit_ns"].to_numpy(), predicted["ready_ns"].to_numpy())
        beside, alone, where = latency_us[crowded], latency_us[~crowded], "with none in flight"
    if min(len(beside), len(alone)) < MIN_READS:
        return
    slow, usual = np.percentile(beside, 99), np.percentile(alone, 99)
    # by chance one read in a hundred lies above the other side's p99: three standard deviations more is no chance
    share, chance = float((beside > usual).mean()), 0.01 + 3 * math.sqrt(0.0099 / min(len(beside), len(alone)))
    if slow > WORSE * usual and share > chance:
        yield "exact_reads_slower", f"p99 of exact reads is {slow:.0f} us beside predicted ones, {usual:.0f} us {where}"


def _tickets(events: Events, intent: str) -> pl.DataFrame:
    done = pl.col("ready_ns").is_not_null() & (pl.col("intent") == intent) & (pl.col("store") == "expert")
    return rows_of(events.lazy().filter(done), ["ticket"], ("submit_ns", "ready_ns"))


def _latency_us(tickets: pl.DataFrame) -> np.ndarray:
    return (tickets["ready_ns"] - tickets["submit_ns"]).to_numpy() / NS_PER_US


def _inside(times: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Which of `times` lie in at least one interval: more have started than ended by then."""
    started = np.searchsorted(np.sort(starts), times, side="right")
    ended = np.searchsorted(np.sort(ends), times, side="right")
    return started > ended


def _more_bytes(events: Events, control: Events | None) -> Iterator[tuple[str, str]]:
    """Bytes per committed token up: against the control, else against what was demanded."""
    moved, demanded = _bytes_per_token(events)
    if control is not None:
        demanded, _ = _bytes_per_token(control)  # what the control moved
    if demanded > 0 and moved > MORE_BYTES * demanded:
        than = "in the control" if control is not None else "demanded"
        yield "more_bytes", f"{moved:,.0f} bytes a token against {demanded:,.0f} {than} ({moved / demanded - 1:+.0%})"


def _bytes_per_token(events: Events) -> tuple[float, float]:
    """Demand plus wasted bytes, and demand bytes, of generation phases per committed token."""
    tokens = generated_tokens(rows_of(events, ("token", "mark"), PASS_COLUMNS))
    tickets = generated(rows_of(events, ["ticket"], ("phase", "outcome", "logical_bytes"))).filter(pl.col("outcome") != "failed")
    if not tokens:
        return 0.0, 0.0
    everything, wasted = (int(rows["logical_bytes"].sum()) for rows in (tickets, tickets.filter(outcome="unused")))
    return everything / tokens, (everything - wasted) / tokens


def _foreign_ids_executed(events: Events) -> Iterator[tuple[str, str]]:
    """Experts ran that the native router had not chosen: the router's and the demanded keys have other fingerprints."""
    keys = ["request", "phase", "position", "layer"]
    # as they are stored: categories of two tables can't be joined
    routed = events.lazy().filter(kind="route").select(*keys, "identity").collect()
    demands = (
        events.lazy().filter(pl.col("kind") == "demand", pl.col("identity").is_not_null()).select(*keys, "identity").collect()
    )
    # a union larger than the pool is demanded in passes; fingerprints of disjoint sets add up
    ran = demands.group_by(keys).agg(pl.col("identity").sum())
    both = routed.join(ran, on=keys, how="inner", suffix="_ran", nulls_equal=True)
    wrong = both.filter(pl.col("identity") != pl.col("identity_ran"))
    if wrong.height:
        first = wrong.sort("position", "layer").row(0, named=True)
        where = f"first at position {first['position']}, layer {first['layer']}"
        yield "foreign_ids_executed", f"{wrong.height} of {both.height} layers ran experts the router had not chosen, {where}"


def _wait_guards_more(events: Events) -> Iterator[tuple[str, str]]:
    """One wait guards more tickets than its stage consumes."""
    waits = rows_of(events, ["wait"], ("layer", "guarded", "consumed")).filter(pl.col("guarded") > pl.col("consumed"))
    if waits.height:
        worst = waits.sort("guarded", descending=True).row(0, named=True)
        yield (
            "wait_guards_more",
            f"{waits.height} waits guard more than their stage consumes, at worst {worst['guarded']} tickets for "
            f"{worst['consumed']} (layer {worst['layer']})",
        )
