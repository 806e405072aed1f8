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


class ListArc:
    """ARC with plain lists, oldest first."""

    def __init__(self, capacity):
        self.capacity, self.target = capacity, 0
        self.once, self.again, self.once_ghosts, self.again_ghosts = [], [], [], []

    def resident(self):
        return self.once + self.again

    def hit(self, key):
        (self.once if key in self.once else self.again).remove(key)
        self.again.append(key)

    def miss(self, key, event):
        once, again, once_ghosts, again_ghosts = self.once, self.again, self.once_ghosts, self.again_ghosts
        kind = "once" if key in once_ghosts else "again" if key in again_ghosts else "new"
        if kind == "once":
            self.target = min(self.capacity, self.target + max(1, len(again_ghosts) / len(once_ghosts)))
            once_ghosts.remove(key)
        if kind == "again":
            self.target = max(0, self.target - max(1, len(once_ghosts) / len(again_ghosts)))
            again_ghosts.remove(key)
        if len(self.resident()) == self.capacity:
            self.replace(kind, event)
        (once if kind == "new" else again).append(key)

    def replace(self, kind, event):
        ghostly = True
        if kind == "new" and len(self.once) + len(self.once_ghosts) == self.capacity:
            ghostly = bool(self.once_ghosts)
            del self.once_ghosts[:1]
        elif kind == "new" and len(self.resident() + self.once_ghosts + self.again_ghosts) == 2 * self.capacity:
            del self.again_ghosts[:1]
        size = len(self.once)
        first = not ghostly or (size and (size > self.target or (size == self.target and kind == "again")))
        queues = [(self.once, self.once_ghosts, ghostly), (self.again, self.again_ghosts, True)]
        queue, ghosts, remembers, victim = next(
            (*entry, key) for entry in (queues if first else queues[::-1]) for key in entry[0] if key not in event
        )
        queue.remove(victim)
        ghosts.extend([victim] * remembers)


class ListS3Fifo:
    """S3-FIFO with plain lists of [key, uses], oldest first."""

    def __init__(self, capacity):
        self.capacity, self.num_small = capacity, max(1, capacity // 10)
        self.small, self.main, self.ghosts, self.evicted = [], [], [], False

    def resident(self):
        return [key for key, _ in self.small + self.main]

    def hit(self, key):
        next(entry for entry in self.small + self.main if entry[0] == key)[1] += 1

    def miss(self, key, event):
        was_ghost = key in self.ghosts
        if was_ghost:
            self.ghosts.remove(key)
        while len(self.resident()) == self.capacity:
            self.evicted = True
            small = [entry for entry in self.small if entry[0] not in event]
            main = [entry for entry in self.main if entry[0] not in event]
            from_main = main and (len(self.main) > self.capacity - self.num_small or not small)
            (self.drop_from_main if from_main else self.drop_from_small)((main if from_main else small)[0])
        fills = not self.evicted and len(self.small) >= self.num_small
        (self.main if was_ghost or fills else self.small).append([key, 0])

    def drop_from_small(self, entry):
        self.small.remove(entry)
        if entry[1] >= 2:
            self.main.append([entry[0], 0])
        else:
            self.ghosts = [*self.ghosts, entry[0]][-int(self.capacity * 0.9) :]

    def drop_from_main(self, entry):
        self.main.remove(entry)
        if entry[1]:
            self.main.append([entry[0], min(entry[1], 3) - 1])


@pytest.mark.parametrize(("policy", "reference"), [("arc", ListArc), ("s3-fifo", ListS3Fifo)])
@given(events=EVENTS, capacity=st.integers(4, 9))
def test_replay_equals_plain_lists(policy, reference, events, capacity):
    cache, expected = reference(capacity), []
    for event in events:
        missing = [key for key in event if key not in cache.resident()]
        for key in event:
            if key not in missing:
                cache.hit(key)
        for key in missing:
            cache.miss(key, event)
        expected.append(len(missing))
    assert miss_counts(events, capacity, policy).tolist() == expected


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
