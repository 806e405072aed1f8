import math

import pytest

from workbench.gates.shared.intervals import Interval, interval


def test_an_interval_needs_enough_numbers():
    assert interval([1.0, 1.0, 1.0, 1.0], 4) == Interval(value=1.0, low=1.0, high=1.0)
    assert math.isnan(interval([1.0, 1.1, 1.2], 4).low)
    assert interval([1.0, 1.1, 1.2], 4).value == pytest.approx(1.1)
    assert math.isnan(interval([1.0, math.nan, 1.0, 1.0], 4).value)
    assert math.isnan(interval([], 0).value)
