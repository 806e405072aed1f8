"""The t quantile against published values, and the false-verdict rate and power of whole series, by simulation."""

import math

import numpy as np
import pytest

from workbench.abba.statistics import Claim, RatioEstimate, claim, control_drift, estimate, judge, log_ratio, t_quantile

# Two-sided 95 % and 99 % points of Student's t, from any printed table.
PUBLISHED = {
    0.95: {1: 12.7062, 2: 4.3027, 3: 3.1824, 4: 2.7764, 5: 2.5706, 6: 2.4469, 7: 2.3646, 10: 2.2281, 30: 2.0423, 120: 1.9799},
    0.99: {1: 63.6567, 2: 9.9248, 3: 5.8409, 4: 4.6041, 5: 4.0321, 6: 3.7074, 7: 3.4995, 10: 3.1693, 30: 2.7500, 120: 2.6174},
}
FALSE_VERDICTS = (Claim.BETTER, Claim.WORSE)
DRIFT_LIMIT = 0.03


@pytest.mark.parametrize("confidence", PUBLISHED)
def test_t_quantile_equals_the_table(confidence):
    found = {degrees: round(t_quantile(confidence, degrees), 4) for degrees in PUBLISHED[confidence]}
    assert found == pytest.approx(PUBLISHED[confidence], abs=5.1e-5)


@pytest.mark.parametrize(("confidence", "degrees"), [(0.95, 0), (1.0, 3), (0.0, 3)])
def test_t_quantile_refuses_what_has_none(confidence, degrees):
    with pytest.raises(ValueError, match="no t quantile"):
        t_quantile(confidence, degrees)


def test_drift_is_relative_to_the_mean():
    assert control_drift(97, 103) == pytest.approx(0.06)
    assert control_drift(0, 1) == math.inf


def test_log_ratio_is_positive_for_the_better_arm_and_cancels_linear_drift():
    assert log_ratio([10, 11, 11, 10], "higher") == pytest.approx(math.log(1.1))
    assert log_ratio([10, 11, 11, 10], "lower") == pytest.approx(-math.log(1.1))
    drifting = [math.exp(0.01 * step) for step in range(4)]
    assert log_ratio(drifting, "higher") == pytest.approx(0, abs=1e-12)


def test_one_cohort_spans_everything():
    assert estimate([0.1], 0.95) == RatioEstimate(mean=0.1, low=-math.inf, high=math.inf, num_cohorts=1, confidence=0.95)


@pytest.mark.parametrize(
    ("log_ratios", "expected"),
    [
        ([0.10, 0.11, 0.10], Claim.INDICATIVE),
        ([0.10, 0.11, 0.10, 0.09], Claim.BETTER),
        ([-0.10, -0.11, -0.10, -0.09], Claim.WORSE),
        ([0.010, 0.011, 0.010, 0.009], Claim.NO_GAIN),
        ([-0.010, -0.011, -0.010, -0.009], Claim.NO_GAIN),
        ([0.10, -0.10, 0.09, -0.05], Claim.UNDECIDED),
    ],
)
def test_claims(log_ratios, expected):
    assert claim(estimate(log_ratios, 0.95), 0.02) is expected


def test_only_failure_stops_a_series_early():
    better, worse = [0.1, 0.1001, 0.1, 0.1001], [-0.1, -0.1001, -0.1, -0.1001]
    assert judge(better, 6, 0.02) is None
    assert judge(worse, 6, 0.02)[0] is Claim.WORSE
    assert judge(worse[:3], 6, 0.02) is None
    assert judge([*better, 0.1, 0.1], 6, 0.02)[0] is Claim.BETTER


def run_series(*, noise, ratio, planned, attempts, minimum_effect, count, seed=7):
    """Claims of `count` simulated series, each with cohorts rejected for control drift as the runner rejects them."""
    arms = np.exp(np.random.default_rng(seed).normal(0, noise, (count, attempts, 4))) * [1, ratio, ratio, 1]
    first, second, third, last = np.moveaxis(arms, -1, 0)
    valid = 2 * np.abs(first - last) / (first + last) <= DRIFT_LIMIT
    gains = np.log(second * third / first / last) / 2
    return [_series_claim(gains[i][valid[i]][:planned].tolist(), planned, minimum_effect) for i in range(count)]


def _series_claim(gains, planned, minimum_effect):
    looks = (judge(gains[:n], planned, minimum_effect) for n in range(4, len(gains) + 1))
    return next((look[0] for look in looks if look), Claim.INDICATIVE)


def share(claims, wanted):
    return sum(found in wanted for found in claims) / len(claims)


@pytest.mark.parametrize("noise", [0.01, 0.02, 0.03, 0.05])
def test_no_more_than_six_percent_false_verdicts(noise):
    # A minimum effect of nothing is the hardest case: the interval alone must hold the rate.
    claims = run_series(noise=noise, ratio=1.0, planned=6, attempts=36, minimum_effect=0.0, count=10_000)
    assert share(claims, FALSE_VERDICTS) <= 0.06


@pytest.mark.parametrize("noise", [0.01, 0.02, 0.03, 0.05])
def test_ten_percent_slowdown_is_found(noise):
    claims = run_series(noise=noise, ratio=0.9, planned=6, attempts=36, minimum_effect=0.02, count=2_000)
    assert share(claims, (Claim.WORSE,)) >= 0.9
    assert share(claims, (Claim.BETTER,)) == 0


@pytest.mark.soak
@pytest.mark.parametrize("planned", [4, 8, 12, 20])
@pytest.mark.parametrize("noise", [0.01, 0.05])
def test_false_verdicts_at_other_lengths(planned, noise):
    claims = run_series(noise=noise, ratio=1.0, planned=planned, attempts=6 * planned, minimum_effect=0.0, count=10_000, seed=11)
    assert share(claims, FALSE_VERDICTS) <= 0.06


def test_one_cohort_judged_by_its_spreads_would_mislead():
    # The plain rule "B beats A by more than both spreads" on one null cohort: why a verdict needs a series.
    arms = np.exp(np.random.default_rng(3).normal(0, 0.02, (10_000, 4)))
    first, second, third, last = arms.T
    gap = np.abs((second + third) - (first + last)) / 2
    assert (gap > np.maximum(np.abs(first - last), np.abs(second - third))).mean() > 0.15
