"""Statistics of cohorts: the paired log-ratio, its t-interval, and the claim that a series of cohorts supports. Pure.

A cohort runs A1 B1 B2 A2, so a linear drift within a cohort cancels in (mean of B) / (mean of A). Noise is multiplicative, so
the ratio is a difference of logarithms. Positive is always better, whether the metric improves upwards or downwards.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

MIN_COHORTS = 4
"""Fewest valid cohorts for a verdict."""

FINAL_CONFIDENCE = 0.95
EARLY_CONFIDENCE = 0.999
"""Confidence of the looks before the last one: they may only declare B worse, and keep a series' false verdicts at 5 %."""

Better = Literal["higher", "lower"]


class Claim(StrEnum):
    """What a series of valid cohorts says about B against A."""

    BETTER = "better"
    WORSE = "worse"
    NO_GAIN = "no_gain"
    """A gain of the minimum effect is excluded."""
    UNDECIDED = "undecided"
    INDICATIVE = "indicative"
    """Fewer cohorts than a verdict needs."""


@dataclass(frozen=True, kw_only=True)
class RatioEstimate:
    """Mean log-ratio of cohorts with its t-interval; positive is better."""

    mean: float
    low: float
    high: float
    num_cohorts: int
    confidence: float


def control_drift(first: float, last: float) -> float:
    """`|A1 - A2|` divided by their mean; also used for the spread of B1 and B2. Infinite unless both are positive."""
    if first <= 0 or last <= 0:
        return math.inf
    return 2 * abs(first - last) / (first + last)


def log_ratio(arms: Sequence[float], better: Better) -> float:
    """Paired log-ratio of one cohort's four values in run order (A1 B1 B2 A2); positive when B is better."""
    first, second, third, last = (math.log(value) for value in arms)
    gain = (second + third - first - last) / 2
    return gain if better == "higher" else -gain


def estimate(log_ratios: Sequence[float], confidence: float) -> RatioEstimate:
    """Mean and two-sided t-interval of the cohorts' log-ratios; with one cohort the interval is infinite."""
    count = len(log_ratios)
    mean = math.fsum(log_ratios) / count
    if count < 2:
        return RatioEstimate(mean=mean, low=-math.inf, high=math.inf, num_cohorts=count, confidence=confidence)
    variance = math.fsum((value - mean) ** 2 for value in log_ratios) / (count - 1)
    half = t_quantile(confidence, count - 1) * math.sqrt(variance / count)
    return RatioEstimate(mean=mean, low=mean - half, high=mean + half, num_cohorts=count, confidence=confidence)


def claim(result: RatioEstimate, minimum_effect: float) -> Claim:
    """The claim that an estimate supports; `minimum_effect` is the smallest gain worth having (a fraction, e.g. 0.02)."""
    smallest = math.log1p(minimum_effect)
    if result.num_cohorts < MIN_COHORTS:
        return Claim.INDICATIVE
    if result.low > 0 and result.mean >= smallest:
        return Claim.BETTER
    if result.high < 0 and result.mean <= -smallest:
        return Claim.WORSE
    return Claim.NO_GAIN if result.high < smallest else Claim.UNDECIDED


def judge(log_ratios: Sequence[float], planned: int, minimum_effect: float) -> tuple[Claim, RatioEstimate] | None:
    """Claim and estimate of a series: at the planned number of cohorts, or earlier when B is worse; None: run another cohort."""
    if len(log_ratios) >= planned:
        result = estimate(log_ratios, FINAL_CONFIDENCE)
        return claim(result, minimum_effect), result
    if len(log_ratios) < MIN_COHORTS:
        return None
    early = estimate(log_ratios, EARLY_CONFIDENCE)
    return (Claim.WORSE, early) if claim(early, minimum_effect) is Claim.WORSE else None


def judge_unfinished(log_ratios: Sequence[float], minimum_effect: float) -> tuple[Claim, RatioEstimate]:
    """Claim and estimate of a series that ended before its planned number of cohorts: may show failure, never a gain."""
    result = estimate(log_ratios, FINAL_CONFIDENCE)
    found = claim(result, minimum_effect)
    return (Claim.UNDECIDED if found is Claim.BETTER else found), result


@functools.cache
def t_quantile(confidence: float, degrees: int) -> float:
    """The t for which `P(|T| <= t) = confidence` at a whole number of degrees of freedom.

    For whole degrees the probability is a finite sum in `theta = atan(t / sqrt(degrees))` (Abramowitz and Stegun,
    Handbook of Mathematical Functions, 26.7.3 and 26.7.4); it grows with theta, so bisection finds the quantile.
    """
    if degrees < 1 or not 0 < confidence < 1:
        raise ValueError(f"no t quantile for confidence {confidence} and {degrees} degrees of freedom")
    low, high = 0.0, math.pi / 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_probability(middle, degrees) < confidence else (low, middle)
    return math.tan((low + high) / 2) * math.sqrt(degrees)


def _t_probability(theta: float, degrees: int) -> float:
    cosine, odd = math.cos(theta), degrees % 2
    total, term = 0.0, cosine if odd else 1.0
    for step in range(degrees // 2):
        total += term
        top = 2 * step + 1 + odd
        term *= cosine * cosine * top / (top + 1)
    return 2 / math.pi * (theta + math.sin(theta) * total) if odd else math.sin(theta) * total
