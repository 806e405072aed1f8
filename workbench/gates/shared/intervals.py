"""Figures of cohorts A1 B1 B2 A2 with 95 % t-intervals over cohorts. Pure: a table of arms in, intervals out."""

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
        """The interval of a count, without width."""
        return cls(value=value, low=value, high=value)


def cohorts_of(arms: pl.DataFrame, disk: str, comparison: str, most: int) -> list[Cohort]:
    """The first `most` valid cohorts of a comparison on a disk, in the order of their runs, from a table of all arms."""
    chosen = arms.filter(pl.col("disk") == disk, pl.col("comparison") == comparison, pl.col("counts")).sort("cohort", "position")
    found = [group.to_dict(as_series=False) for _, group in chosen.group_by("cohort", maintain_order=True)]
    return [cohort for cohort in found if len(cohort["arm"]) == 4][:most]


def interval(values: Sequence[float], least: int) -> Interval:
    """Mean of `values` with its t-interval; NaN ends for fewer than `least` values, all NaN if a value is NaN."""
    if not values or any(math.isnan(value) for value in values):
        return Interval()
    found = estimate(values, FINAL_CONFIDENCE)
    known = len(values) >= max(least, 2)
    return Interval(value=found.mean, low=found.low if known else math.nan, high=found.high if known else math.nan)


def rate_ratio(cohorts: Sequence[Cohort], measure: str, least: int) -> Interval:
    """A measure (a rate or a time) of arms B divided by that of arms A: geometric mean over cohorts."""
    logs = [log_ratio(cohort[measure], "higher") if _positive(cohort[measure]) else math.nan for cohort in cohorts]
    found = interval(logs, least)
    return Interval(value=math.exp(found.value), low=math.exp(found.low), high=math.exp(found.high))


def speedup(cohorts: Sequence[Cohort], least: int) -> Interval:
    """Tokens/s of arms B divided by those of arms A: geometric mean over cohorts."""
    slower = rate_ratio(cohorts, "token_ms", least)
    return Interval(value=1 / slower.value, low=1 / slower.high, high=1 / slower.low)


def _positive(values: Sequence[float]) -> bool:
    return all(value > 0 for value in values)


def of_cohorts(cohorts: Sequence[Cohort], figure: Callable[[Cohort], float], least: int) -> Interval:
    """Mean over cohorts of a figure that each cohort gives."""
    return interval([figure(cohort) for cohort in cohorts], least)


def waits(cohort: Cohort) -> list[float]:
    """Exposed waits of each arm for records and pages together, milliseconds per token."""
    return [expert + ple for expert, ple in zip(cohort["expert_wait_ms"], cohort["ple_wait_ms"], strict=True)]


def candidate(values: Sequence[float]) -> float:
    """Mean of the two arms B."""
    return (values[1] + values[2]) / 2


def control(values: Sequence[float]) -> float:
    """Mean of the two arms A."""
    return (values[0] + values[3]) / 2


def wait_ratio(cohort: Cohort) -> float:
    """Exposed waits of arms B divided by those of arms A; NaN where A never waited."""
    both = waits(cohort)
    return candidate(both) / control(both) if control(both) else math.nan


def added_wait_share(cohort: Cohort) -> float:
    """(Exposed waits of arms B - those of arms A) / token time of arms A."""
    both = waits(cohort)
    return (candidate(both) - control(both)) / control(cohort["token_ms"])
