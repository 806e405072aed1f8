"""Every clause of Gate A, planted on the figures that its verdict is drawn from."""

from dataclasses import replace

import pytest

from workbench.abba.power import PowerState
from workbench.abba.records import WatchRecord
from workbench.analysis.storage import Median
from workbench.gates.a_storage.config import StorageConfig
from workbench.gates.a_storage.verdict import Measures, conditions_of, criteria_of, limits_of
from workbench.gates.base import Findings, conclude
from workbench.hardware import machine
from workbench.schema import Outcome


def median(value, low=None, high=None, count=7):
    return Median(value=value, low=value if low is None else low, high=value if high is None else high, count=count)


def measures(**more):
    fields = {
        "cold_share": 1.0,
        "spread": 0.05,
        "reader_ratio": median(1.4),
        "busy_latency": median(1.2),
        "slowdown": median(1.1),
        "split_ratio": median(1.0),
        "crossover": 0.8,
        "fewest_repeats": 7,
        "fewest_spread": 21,
    }
    return Measures(**(fields | more))


def watch(other_cores=0.0, swap_out_bytes=0):
    fields = {"wall_s": 60.0, "num_samples": 2, "longest_gap_s": 60.0, "memory_pressure": 0.1, "stolen_cores": 0.0, "busiest": ""}
    power = {"power_before": PowerState(), "power_after": PowerState()}
    return WatchRecord(**fields, **power, other_cores=other_cores, swap_out_bytes=swap_out_bytes)


@pytest.mark.parametrize(
    ("planted", "outcome", "codes"),
    [
        (measures(), Outcome.PASS, ("A.cold", "A.repeatable", "A.reader", "A.interpreter", "A.interference")),
        (measures(cold_share=0.99), Outcome.FAIL, ("A.cold",)),
        (measures(spread=0.11), Outcome.FAIL, ("A.repeatable",)),
        (measures(spread=0.11, fewest_spread=13), Outcome.INCONCLUSIVE, ("A.repeatable",)),
        (measures(reader_ratio=median(0.8)), Outcome.FAIL, ("A.reader",)),
        (measures(reader_ratio=median(1.0, 0.8, 1.2)), Outcome.INCONCLUSIVE, ("A.reader",)),
        (measures(busy_latency=median(100.0)), Outcome.FAIL, ("A.interpreter",)),
        (measures(slowdown=median(1.5)), Outcome.FAIL, ("A.interference",)),
        (measures(slowdown=median(float("nan"))), Outcome.INCONCLUSIVE, ("A.interference",)),
    ],
)
def test_each_clause_decides_by_its_own_code(planted, outcome, codes):
    verdict = conclude(Findings(criteria=criteria_of(planted, StorageConfig()), summary=""))
    assert (verdict.outcome, verdict.codes) == (outcome, codes)


def test_the_thresholds_are_the_registered_ones():
    clauses = criteria_of(measures(), StorageConfig())
    assert [(clause.code, clause.relation, clause.threshold) for clause in clauses] == [
        ("A.cold", ">=", 1.0),
        ("A.repeatable", "<=", 0.10),
        ("A.reader", ">=", 0.90),
        ("A.interpreter", "<=", 3.0),
        ("A.interference", "<=", 1.25),
    ]
    assert "max_spread" in " ".join(conditions_of(StorageConfig(max_spread=0.5), "ext4", {}))
    assert not any("thresholds" in line for line in conditions_of(StorageConfig(), "ext4", {}))


def test_what_was_timed_beside_others_decides_nothing_but_cold_still_does():
    slow = measures(spread=0.5, slowdown=median(9.0), cold_share=1.0)
    limits = limits_of(slow, StorageConfig(), watch(other_cores=machine().num_cores), [])
    verdict = conclude(Findings(criteria=criteria_of(slow, StorageConfig(), quiet=False), summary="", limits=limits))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "A.repeatable" in verdict.codes
    assert "not alone on the machine" in limits["A.quiet"]
    not_cold = criteria_of(replace(slow, cold_share=0.5), StorageConfig(), quiet=False)
    assert conclude(Findings(criteria=not_cold, summary="")).codes == ("A.cold",)
    assert "swapped" in limits_of(measures(), StorageConfig(), watch(swap_out_bytes=4096), [])["A.quiet"]


def test_a_small_or_hurried_sample_is_a_limit():
    assert limits_of(measures(), StorageConfig(), watch(), []) == {}
    assert "smoke run" in limits_of(measures(), StorageConfig(smoke=True), watch(), [])["A.sample"]
    assert "out of time in beside" in limits_of(measures(fewest_repeats=3), StorageConfig(), watch(), ["beside"])["A.sample"]
