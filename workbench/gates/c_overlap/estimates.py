"""Intervals from Gate C's tables: paired within cohorts or repeats, with 95 % t-intervals. Pure."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import polars as pl

from workbench.abba.statistics import FINAL_CONFIDENCE, estimate, log_ratio

Cohort = dict[str, list[float]]
"""Values of the four arms A1 B1 B2 A2, by measure."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A value with the ends of its 95 % interval; NaN ends: too little was measured for one."""

    value: float = math.nan
    low: float = math.nan
    high: float = math.nan

    @classmethod
    def exact(cls, value: float) -> "Interval":
        """Of a count."""
        return cls(value=value, low=value, high=value)


def cohorts_of(arms: pl.DataFrame, disk: str, comparison: str, most: int) -> list[Cohort]:
    """The cohorts that count, in the order they were run, no more than were planned."""
    chosen = arms.filter(pl.col("disk") == disk, pl.col("comparison") == comparison, pl.col("counts")).sort("cohort", "position")
    found = [group.to_dict(as_series=False) for _, group in chosen.group_by("cohort", maintain_order=True)]
    return [cohort for cohort in found if len(cohort["arm"]) == 4][:most]


def interval(values: Sequence[float], least: int) -> Interval:
    """Mean with its t-interval; fewer than `least` values, or one that is no number, have no interval."""
    if not values or any(math.isnan(value) for value in values):
        return Interval()
    found = estimate(values, FINAL_CONFIDENCE)
    known = len(values) >= max(least, 2)
    return Interval(value=found.mean, low=found.low if known else math.nan, high=found.high if known else math.nan)


def rate_ratio(cohorts: Sequence[Cohort], measure: str, least: int) -> Interval:
    """B over A of a rate or a time: geometric mean over cohorts."""
    logs = [log_ratio(cohort[measure], "higher") if _positive(cohort[measure]) else math.nan for cohort in cohorts]
    found = interval(logs, least)
    return Interval(value=math.exp(found.value), low=math.exp(found.low), high=math.exp(found.high))


def _positive(values: Sequence[float]) -> bool:
    return all(value > 0 for value in values)


def of_cohorts(cohorts: Sequence[Cohort], figure: Callable[[Cohort], float], least: int) -> Interval:
    """A figure that each cohort gives."""
    return interval([figure(cohort) for cohort in cohorts], least)


def waits(cohort: Cohort) -> list[float]:
    """Exposed waits of each arm, records and pages together, milliseconds a token."""
    return [expert + ple for expert, ple in zip(cohort["expert_wait_ms"], cohort["ple_wait_ms"], strict=True)]


def candidate(values: Sequence[float]) -> float:
    """Mean of the arms B."""
    return (values[1] + values[2]) / 2


def control(values: Sequence[float]) -> float:
    """Mean of the arms A."""
    return (values[0] + values[3]) / 2


def wait_ratio(cohort: Cohort) -> float:
    """Exposed waits of B over those of A; no number where A never waited."""
    both = waits(cohort)
    return candidate(both) / control(both) if control(both) else math.nan


def page_wait_share(cohort: Cohort) -> float:
    """Exposed wait for pages over token time, in the arms B; no number where no page was read."""
    if not candidate(cohort["page_misses"]):
        return math.nan
    return candidate(cohort["ple_wait_ms"]) / candidate(cohort["token_ms"])


def added_wait_share(cohort: Cohort) -> float:
    """Exposed waits of B less those of A, over A's token time."""
    both = waits(cohort)
    return (candidate(both) - control(both)) / control(cohort["token_ms"])


def mode_ratio(modes: pl.DataFrame, tile: int, above: str, below: str) -> Interval:
    """Seconds of one mode over another's at a tile, paired by repeat."""
    at = modes.filter(tile=tile)
    pairs = at.filter(mode=above).join(at.filter(mode=below), on="repeat", suffix="_below")
    return interval((pairs["seconds"] / pairs["seconds_below"]).to_list(), 2)


def chosen_modes(modes: pl.DataFrame, tile: int) -> list[str]:
    """What the runtime chose at a tile, in any repeat."""
    return sorted(set(modes.filter(tile=tile, mode="auto")["chosen"].drop_nulls()))


def choice_ratio(modes: pl.DataFrame, tile: int, faster: str) -> Interval:
    """Seconds of the chosen mode, forced, over the faster one's; where repeats chose differently, of the worse choice."""
    ratios = [mode_ratio(modes, tile, chosen, faster) for chosen in chosen_modes(modes, tile)]
    return max(ratios, key=lambda each: each.value, default=Interval())


def faster_mode(modes: pl.DataFrame, tile: int) -> str:
    """`micro` or `macro`, by their mean times."""
    forced = modes.filter(pl.col("tile") == tile, pl.col("mode").is_in(["micro", "macro"]))
    return str(forced.group_by("mode").agg(pl.col("seconds").mean()).sort("seconds", "mode")["mode"][0])


def unique_fraction(modes: pl.DataFrame, tile: int) -> float:
    """Share of the layer's bytes that the tile uses."""
    at = modes.filter(tile=tile)
    return float(at["union_bytes"].to_numpy().sum() / at["layer_bytes"].to_numpy().sum())


def overread_over_hidden(modes: pl.DataFrame, tile: int) -> Interval:
    """Of macro passes: time to read what no token used, over the reading that compute hid; infinite where it hid nothing."""
    macro = modes.filter(tile=tile, mode="macro")
    overread_s = macro["io_s"] * (macro["physical_bytes"] - macro["union_bytes"]) / macro["physical_bytes"]
    hidden_s = macro["io_s"] - macro["wait_s"]
    shares = [over / hidden if hidden > 0 else math.inf for over, hidden in zip(overread_s, hidden_s, strict=True)]
    if any(math.isinf(share) for share in shares):
        return Interval.exact(math.inf)
    return interval(shares, 2)
