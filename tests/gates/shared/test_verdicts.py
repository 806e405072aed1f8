from workbench.gates.shared.config import ComparisonConfig
from workbench.gates.shared.intervals import Interval
from workbench.gates.shared.verdicts import changed_thresholds, clause
from workbench.schema import Outcome


def test_a_clause_is_decided_by_its_whole_interval():
    ends = {"within": (0.4, 0.6), "across": (0.4, 1.6), "outside": (1.4, 1.6)}
    found = {
        name: clause("X.one", "s", Interval(value=0.5, low=low, high=high), "<", 1.0).outcome
        for name, (low, high) in ends.items()
    }
    assert found == {"within": Outcome.PASS, "across": Outcome.INCONCLUSIVE, "outside": Outcome.FAIL}


def test_only_registered_settings_that_differ_are_named():
    config = ComparisonConfig(min_orders=3, tokens=4)
    assert changed_thresholds(config, ("min_cohorts", "min_orders")) == ["thresholds differ from the registered ones: min_orders"]
    assert changed_thresholds(config, ("min_cohorts",)) == []
