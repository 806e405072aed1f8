import pytest

from workbench.gates.shared.interference import kept_overlap


def test_overlap_is_kept_whole_when_neither_slows_and_lost_when_they_take_turns():
    assert kept_overlap(100, 100, 2.0, 2.0) == pytest.approx(1.0)
    assert kept_overlap(100, 70, 2.0, 0.6) == pytest.approx(0.0)
    assert kept_overlap(0, 0, 2.0, 2.0) == 0.0
