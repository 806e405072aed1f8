"""Detectors that examine every run: each finds one way in which good figures hide that the run gained nothing."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

import numpy as np
import polars as pl

from workbench.schema.events import PASS_COLUMNS, Events, rows_of
from workbench.schema.generated import Intervals, generated, generated_tokens
from workbench.units import GB, NS_PER_US

EXPOSED_LIMIT = 0.20
"""Share of token time in exposed waits above which a good hit rate or bandwidth is suspicious."""
HIGH = 0.80
"""Hit rate, or share of the known bandwidth, from which on a figure looks good."""
MIN_READS = 200
"""Fewest exact reads on each side for a comparison of their p99."""
WORSE = 1.10
"""Ratio of p99 above which a finding is reported."""
MORE_BYTES = 1.05
"""Ratio of bytes per token above which a finding is reported."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One finding of a detector."""

    code: str
    """Name of the kind of finding."""
    statement: str
    """The finding in words, with figures."""

    def row(self) -> dict[str, str]:
        """The finding as a table row."""
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
        events: events of the run.
        metrics: metrics of the run.
        bandwidth_bytes_per_s: bandwidth of the disk, measured elsewhere; infinite: unknown.
        control: events of the same run without the tested mechanism; None: there is no such run.
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
    """Hit rate or bandwidth is high, yet exposed waits take a large share of token time."""
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
    """p99 of exact reads is worse beside predicted reads: against the control, else against reads with none in flight."""
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
    # by chance one read in a hundred is above the other side's p99; a share three standard deviations higher is significant
    share, chance = float((beside > usual).mean()), 0.01 + 3 * math.sqrt(0.0099 / min(len(beside), len(alone)))
    if slow > WORSE * usual and share > chance:
        yield "exact_reads_slower", f"p99 of exact reads is {slow:.0f} us beside predicted ones, {usual:.0f} us {where}"


def _tickets(events: Events, intent: str) -> pl.DataFrame:
    done = pl.col("ready_ns").is_not_null() & (pl.col("intent") == intent) & (pl.col("store") == "expert")
    return rows_of(events.lazy().filter(done), ["ticket"], ("submit_ns", "ready_ns"))


def _latency_us(tickets: pl.DataFrame) -> np.ndarray:
    return (tickets["ready_ns"] - tickets["submit_ns"]).to_numpy() / NS_PER_US


def _inside(times: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Which of `times` are in at least one interval: more intervals have started than ended by then."""
    started = np.searchsorted(np.sort(starts), times, side="right")
    ended = np.searchsorted(np.sort(ends), times, side="right")
    return started > ended


def _more_bytes(events: Events, control: Events | None) -> Iterator[tuple[str, str]]:
    """Bytes per committed token exceed those of the control, or without a control the demanded bytes."""
    moved, demanded = _bytes_per_token(events)
    if control is not None:
        demanded, _ = _bytes_per_token(control)  # all bytes that the control read
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
    # a union larger than the pool is demanded in several parts; fingerprints of disjoint sets add up
    ran = demands.group_by(keys).agg(pl.col("identity").sum())
    both = routed.join(ran, on=keys, how="inner", suffix="_ran", nulls_equal=True)
    wrong = both.filter(pl.col("identity") != pl.col("identity_ran"))
    if wrong.height:
        first = wrong.sort("position", "layer").row(0, named=True)
        where = f"first at position {first['position']}, layer {first['layer']}"
        yield "foreign_ids_executed", f"{wrong.height} of {both.height} layers ran experts the router had not chosen, {where}"


def _wait_guards_more(events: Events) -> Iterator[tuple[str, str]]:
    """A wait is for more tickets than the stage behind it consumes."""
    waits = rows_of(events, ["wait"], ("layer", "guarded", "consumed")).filter(pl.col("guarded") > pl.col("consumed"))
    if waits.height:
        worst = waits.sort("guarded", descending=True).row(0, named=True)
        yield (
            "wait_guards_more",
            f"{waits.height} waits guard more than their stage consumes, at worst {worst['guarded']} tickets for "
            f"{worst['consumed']} (layer {worst['layer']})",
        )
