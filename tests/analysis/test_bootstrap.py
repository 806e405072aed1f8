import numpy as np
import pytest

from workbench.analysis.bootstrap import Resampler
from workbench.errors import BadInput


def test_the_value_is_the_plain_ratio_and_equal_requests_have_no_spread():
    estimate = Resampler(4).ratio(np.array([2.0, 2, 2, 2]), np.array([4, 4, 4, 4]))
    assert (float(estimate.value), float(estimate.low), float(estimate.high)) == (0.5, 0.5, 0.5)


def test_long_requests_weigh_more_than_short_ones():
    assert float(Resampler(2).ratio(np.array([1.0, 0.0]), np.array([3, 1])).value) == 0.25


def test_every_resample_draws_as_many_requests_as_there_are():
    weights = Resampler(7, num_resamples=50).weights
    assert weights.shape == (50, 7)
    assert (weights.sum(axis=1) == 7).all()


def test_a_seed_gives_the_same_interval_and_another_seed_another():
    sums, ones = np.random.default_rng(0).random(20), np.ones(20)
    first, again, other = (Resampler(20, seed=seed).ratio(sums, ones) for seed in (1, 1, 2))
    assert (first.low, first.high) == (again.low, again.high)
    assert (first.low, first.high) != (other.low, other.high)


def test_resampling_equals_drawing_whole_requests_one_by_one():
    rng = np.random.default_rng(3)
    numerator, denominator = rng.random((6, 2)), rng.integers(1, 5, size=6)
    resampler = Resampler(6, num_resamples=200, seed=9)
    drawn = []
    for counts in resampler.weights.astype(int):
        picked = np.repeat(np.arange(6), counts)
        drawn.append(numerator[picked].sum(axis=0) / denominator[picked].sum())
    estimate = resampler.ratio(numerator, denominator)
    assert estimate.low == pytest.approx(np.percentile(drawn, 2.5, axis=0))
    assert estimate.high == pytest.approx(np.percentile(drawn, 97.5, axis=0))


def test_the_interval_covers_the_mean_about_as_often_as_it_says():
    rng = np.random.default_rng(11)
    inside = 0
    for seed in range(200):
        sample = rng.normal(1.0, 0.5, size=40)
        estimate = Resampler(40, num_resamples=400, seed=seed).ratio(sample, np.ones(40))
        inside += float(estimate.low) <= 1.0 <= float(estimate.high)
    assert 0.88 <= inside / 200 <= 0.99


def test_a_measure_that_no_request_can_give_is_refused():
    with pytest.raises(BadInput, match="long enough"):
        Resampler(2).ratio(np.zeros(2), np.zeros(2))


def test_resamples_with_nothing_to_divide_by_are_left_out():
    estimate = Resampler(2, num_resamples=64).ratio(np.array([3.0, 0.0]), np.array([3, 0]))
    assert (float(estimate.low), float(estimate.high)) == (1.0, 1.0)
