"""Every clause of Gate B, planted on the figures that its verdict is drawn from."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from workbench.analysis.bootstrap import Interval
from workbench.gates.b_locality import LocalityConfig
from workbench.gates.b_locality.measures import Measures
from workbench.gates.b_locality.verdict import conditions_of, criteria_of, limits_of
from workbench.gates.base import Findings, conclude
from workbench.schema import Outcome


def measures(*, miss=(0.5, 0.45, 0.55), union=(0.8, 0.79, 0.81), acceptance=(0.6, 0.59, 0.61)):
    made = {"acceptance": pl.DataFrame({"block": [5], "acceptance_needed": [0.6]})}
    ends = [Interval(value=np.array(v), low=np.array(lo), high=np.array(hi)) for v, lo, hi in (miss, miss, union, acceptance)]
    return Measures(
        miss_ratio=ends[0],
        miss_ratio_popularity=ends[1],
        union_ratio=ends[2],
        acceptance=ends[3],
        tables=made,
        metrics={},
        misses_by_step=np.zeros(1),
    )


@pytest.mark.parametrize(
    ("planted_measures", "outcome", "codes"),
    [
        (measures(), Outcome.PASS, ("B.locality", "B.union", "B.breakeven")),
        (measures(miss=(0.90, 0.87, 0.93)), Outcome.FAIL, ("B.locality",)),
        (measures(union=(0.97, 0.96, 0.98)), Outcome.FAIL, ("B.union",)),
        (measures(acceptance=(0.83, 0.82, 0.84)), Outcome.FAIL, ("B.breakeven",)),
        (measures(miss=(0.84, 0.80, 0.88)), Outcome.INCONCLUSIVE, ("B.locality",)),
        (measures(miss=(0.84, 0.80, 0.88), union=(0.97, 0.96, 0.98)), Outcome.FAIL, ("B.union",)),
    ],
)
def test_each_clause_decides_by_its_own_code(planted_measures, outcome, codes):
    verdict = conclude(Findings(criteria=criteria_of(planted_measures, LocalityConfig()), summary=""))
    assert (verdict.outcome, verdict.codes) == (outcome, codes)


def test_the_thresholds_are_the_registered_ones():
    criteria = criteria_of(measures(), LocalityConfig())
    assert [(c.code, c.relation, c.threshold) for c in criteria] == [
        ("B.locality", "<", 0.85),
        ("B.union", "<=", 0.95),
        ("B.breakeven", "<=", 0.80),
    ]
    assert "25% of the records" in criteria[0].statement
    assert (LocalityConfig().min_requests, LocalityConfig().min_tokens) == (40, 128)


def test_changed_thresholds_stand_in_the_verdict():
    assert not any("thresholds" in line for line in conditions_of(LocalityConfig()))
    assert "thresholds differ from the registered ones: max_miss_ratio" in conditions_of(LocalityConfig(max_miss_ratio=0.9))


def test_a_full_sample_has_no_limits_and_anything_less_has(repeated):
    config = LocalityConfig()
    assert limits_of(repeated, config) == {}
    assert "smoke run" in limits_of(repeated, LocalityConfig(smoke=True))["B.sample"]
    assert "39 of them held out" in limits_of(replace(repeated, splits=("train", *repeated.splits[1:])), config)["B.sample"]
    assert "0 with 129 decoded tokens" in limits_of(repeated, LocalityConfig(min_tokens=129))["B.sample"]
    assert "B.sample" in limits_of(repeated, LocalityConfig(min_requests=41))
    assert set(limits_of(repeated, LocalityConfig(profile="slice"))) == {"B.profile"}
