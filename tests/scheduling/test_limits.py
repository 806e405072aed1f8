import pytest

from workbench.scheduling import Budget, Priority, ReadLimits
from workbench.scheduling.limits import InFlight

WIDE = Budget(num_bytes=1000, slots=10, reads=10)


def in_flight(p1=WIDE, p2=WIDE, p3=WIDE, depth=4):
    budgets = {Priority.P1: p1, Priority.P2: p2, Priority.P3: p3}
    return InFlight(ReadLimits(depth={"expert": depth, "ple": 2}, budgets=budgets))


def test_a_full_queue_leaves_the_other_alone():
    some = in_flight()
    for _ in range(4):
        assert some.admits("expert", Priority.P0, 100, 0)
        some.add("expert", Priority.P0, 100)
    assert not some.admits("expert", Priority.P0, 100, 0)
    assert some.admits("ple", Priority.P0, 100, 0)
    some.remove("expert", Priority.P0, 100)
    assert some.admits("expert", Priority.P0, 100, 0)


@pytest.mark.parametrize(
    "budget",
    [Budget(num_bytes=150, slots=9, reads=9), Budget(num_bytes=999, slots=1, reads=9), Budget(num_bytes=999, slots=9, reads=1)],
)
def test_a_class_keeps_each_of_its_bounds(budget):
    some = in_flight(p1=budget, p2=budget, p3=budget)
    some.add("expert", Priority.P1, 100)
    some.count_slots(Priority.P1, 1)
    assert not some.admits("expert", Priority.P1, 100, 1)
    assert some.admits("expert", Priority.P0, 100, 1)


def test_less_urgent_reads_count_against_the_class_above():
    some = in_flight(p1=Budget(num_bytes=999, slots=9, reads=2), p2=Budget(num_bytes=999, slots=9, reads=1))
    some.add("expert", Priority.P2, 100)
    assert not some.admits("expert", Priority.P2, 100, 0)
    assert some.admits("expert", Priority.P1, 100, 0)
    some.add("expert", Priority.P1, 100)
    assert not some.admits("expert", Priority.P1, 100, 0)


def test_a_promoted_read_leaves_its_old_budget():
    some = in_flight(p1=Budget(num_bytes=100, slots=9, reads=9))
    some.add("expert", Priority.P1, 100)
    some.reclass(Priority.P1, Priority.P0, 100)
    assert some.use(Priority.P1) == (0, 0, 0)
    assert some.admits("expert", Priority.P1, 100, 0)
    some.remove("expert", Priority.P0, 100)
    assert some.use(Priority.P0) == (0, 0, 0)


def test_p3_waits_for_an_idle_disk():
    some = in_flight()
    some.add("ple", Priority.P2, 1)
    assert not some.admits("expert", Priority.P3, 1, 0)
    some.remove("ple", Priority.P2, 1)
    assert some.admits("expert", Priority.P3, 1, 0)


def test_a_read_larger_than_its_budget_never_fits():
    assert not in_flight(p1=Budget(num_bytes=10, slots=1, reads=1)).fits(Priority.P2, 11)
    assert in_flight().fits(Priority.P2, 11)
    assert in_flight().fits(Priority.P0, 1 << 40)


@pytest.mark.parametrize("settings", [{"depth": {"expert": 0}}, {"depth": {}}, {"budgets": {Priority.P1: WIDE}}])
def test_impossible_settings_are_refused(settings):
    with pytest.raises(ValueError, match="need"):
        ReadLimits(**settings)
