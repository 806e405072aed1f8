"""The replay equals a reference that scans every resident at each eviction."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.errors import BadInput
from workbench.policies import Lru
from workbench.simulate.replay import miss_counts, miss_counts_per_access

EVENTS = st.lists(st.lists(st.integers(0, 11), min_size=1, max_size=4, unique=True), max_size=60)


def reference_misses(events, capacity, policy):
    """One resident set, one rule: evict the worst resident outside the event until all fit."""
    resident, uses, last, misses = set(), {}, {}, []
    for now, event in enumerate(events):
        misses.append(len(set(event) - resident))
        for rank, key in enumerate(sorted(event, key=lambda key: key not in resident)):
            uses[key] = uses.get(key, 0) + 1
            last[key] = (now, rank)

        def next_use(key, now=now):
            return next((i for i in range(now + 1, len(events)) if key in events[i]), math.inf)

        worst_first = {
            "lru": lambda key: last[key],
            "lfru": lambda key: (uses[key] / (now - last[key][0] + 1), uses[key], last[key]),  # noqa: B023
            "belady": lambda key: (-next_use(key), key),
        }[policy]
        resident |= set(event)
        for victim in sorted(resident - set(event), key=worst_first)[: max(0, len(resident) - capacity)]:
            resident.remove(victim)
    return misses


def fewest_misses(events, capacity):
    """Exhaustive search over all residents that hold each event's records together."""
    costs = {frozenset(): 0}
    for event in map(frozenset, events):
        following = {}
        for resident, cost in costs.items():
            missing = len(event - resident)
            spare = resident - event
            for kept in itertools.combinations(spare, min(len(spare), capacity - len(event))):
                state = event | frozenset(kept)
                following[state] = min(following.get(state, math.inf), cost + missing)
        costs = following
    return min(costs.values())


@pytest.mark.parametrize("policy", ["lru", "lfru", "belady"])
@given(events=EVENTS, capacity=st.integers(4, 9))
def test_replay_equals_the_reference(policy, events, capacity):
    assert miss_counts(events, capacity, policy).tolist() == reference_misses(events, capacity, policy)


@settings(max_examples=40)
@given(
    events=st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=3, unique=True), max_size=14),
    capacity=st.integers(3, 5),
)
def test_belady_has_the_fewest_misses_of_all_schedules(events, capacity):
    assert miss_counts(events, capacity, "belady").sum() == fewest_misses(events, capacity)


def test_an_event_never_evicts_its_own_hits():
    events = [(1, 2), (3, 1), (2, 4)]
    # per access, 3 would evict 1 (the oldest) just before the event needs it
    assert miss_counts(events, 2, "lru").tolist() == [2, 1, 2]
    assert miss_counts_per_access([1, 2, 3, 1, 2, 4], 2, "lru").tolist() == [1] * 6


def test_arrays_factories_and_duplicates():
    events = np.array([[3, 1, 3], [1, 2, 2], [3, 3, 3]])
    assert miss_counts(events, 2, "lru").tolist() == [2, 1, 1]
    assert miss_counts(events, 2, Lru).tolist() == [2, 1, 1]
    assert miss_counts([], 2, "lfru").dtype == np.int64


def test_pinned_records_stay_and_cost_a_slot():
    events = [(1,), (2,), (3,), (1,), (9,)]
    assert miss_counts(events, 3, "lru", pinned=[9]).tolist() == [1, 1, 1, 1, 0]
    assert miss_counts(events, 3, "lru").tolist() == [1, 1, 1, 0, 1]


def test_a_capacity_below_one_event_is_refused_with_both_figures():
    with pytest.raises(BadInput, match=r"needs 3 records at once, the cache holds 2"):
        miss_counts([(1, 2, 3)], 2, "lru")
    with pytest.raises(BadInput, match=r"needs 2 records at once beside 1 pinned records, the cache holds 2"):
        miss_counts([(1, 2)], 2, "lru", pinned=[7])
