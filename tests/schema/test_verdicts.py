import math

import pytest

from workbench.schema import Criterion, Outcome, decide


def criterion(low, high, *, code="B.x", relation="<", threshold=1.0):
    return Criterion(code=code, statement="x", value=(low + high) / 2, low=low, high=high, relation=relation, threshold=threshold)


@pytest.mark.parametrize(
    ("low", "high", "relation", "outcome"),
    [
        (0.5, 0.9, "<", Outcome.PASS),
        (1.1, 1.2, "<", Outcome.FAIL),
        (0.9, 1.1, "<", Outcome.INCONCLUSIVE),
        (0.9, 1.0, "<", Outcome.INCONCLUSIVE),
        (0.9, 1.0, "<=", Outcome.PASS),
        (1.0, 2.0, ">", Outcome.INCONCLUSIVE),
        (1.0, 2.0, ">=", Outcome.PASS),
        (0.0, 0.5, ">", Outcome.FAIL),
        (math.nan, math.nan, "<", Outcome.INCONCLUSIVE),
        (0.5, math.nan, "<", Outcome.INCONCLUSIVE),
    ],
)
def test_the_whole_interval_decides_a_criterion(low, high, relation, outcome):
    assert criterion(low, high, relation=relation).outcome is outcome


PASSES, FAILS, STRADDLES = ((0.1, 0.2), (2.0, 3.0), (0.5, 1.5))


@pytest.mark.parametrize(
    ("intervals", "outcome", "codes"),
    [
        ([PASSES, PASSES], Outcome.PASS, ("c0", "c1")),
        ([PASSES, FAILS, STRADDLES], Outcome.FAIL, ("c1",)),
        ([STRADDLES, PASSES], Outcome.INCONCLUSIVE, ("c0",)),
        ([FAILS, FAILS], Outcome.FAIL, ("c0", "c1")),
    ],
)
def test_a_verdict_names_the_clauses_that_decided(intervals, outcome, codes):
    verdict = decide([criterion(*interval, code=f"c{i}") for i, interval in enumerate(intervals)], enables=["go on"])
    assert (verdict.outcome, verdict.codes) == (outcome, codes)
    assert verdict.enables == (("go on",) if outcome is Outcome.PASS else ())
    assert len(verdict.criteria) == len(intervals)


def test_a_verdict_without_clauses_is_an_error():
    with pytest.raises(ValueError, match="needs its criteria"):
        decide([])


def test_exit_statuses():
    assert {outcome: outcome.exit_code for outcome in Outcome} == {
        Outcome.PASS: 0,
        Outcome.FAIL: 1,
        Outcome.INCONCLUSIVE: 4,
    }
