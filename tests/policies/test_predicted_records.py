"""A prediction is no use, for every policy: used later it is like a record that was demanded, wasted it leaves no trace.

The slot table keeps predicted records to itself until an event uses them, so two tables with equal policies see equal events,
and one of them gets predictions besides.
"""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.policies import POLICIES, make
from workbench.scheduling import SlotTable

NUM_KEYS = 16
STRANGERS = (16, 17, 18, 19)
"""Keys that no event uses."""
EVENTS = st.lists(st.lists(st.integers(0, NUM_KEYS - 1), min_size=1, max_size=4, unique=True), min_size=1, max_size=60)


class Owner:
    """A slot table and what its policy evicts, event by event."""

    def __init__(self, name: str, capacity: int, events: Sequence[Sequence[int]]) -> None:
        settings = {"belady": {"events": events}, "layer-quota": {"num_experts": 4}}
        self.table = SlotTable(capacity, make(name, capacity=capacity, **settings.get(name, {})))

    def run(self, keys: Sequence[int]) -> list[int]:
        """One event; returns the victims."""
        table = self.table
        hits, misses = table.partition(keys)
        table.policy.start_event()
        for key in hits:
            table.pin(key)
        table.touch(hits)
        victims = table.admit(misses)
        self._publish(misses)
        for key in hits:
            table.unpin(key)
        return victims

    def predict(self, keys: Sequence[int]) -> list[int]:
        """Brings `keys` that nobody has used; returns the victims."""
        victims = self.table.admit(keys, predicted=True)
        self._publish(keys)
        return victims

    def make_room(self, count: int) -> None:
        """Drops residents, the lowest keys first, until `count` slots are free."""
        for key in sorted(self.table.resident_keys)[: max(0, count - self.table.num_free)]:
            self.table.drop(key)

    def _publish(self, keys: Sequence[int]) -> None:
        for key in keys:
            assert self.table.publish(key, self.table.generation(self.table.slot(key)))

    def remaining(self) -> list[int]:
        """All residents, worst first."""
        return self.table.policy.evict(len(self.table.resident_keys), ())


@pytest.mark.parametrize("name", POLICIES)
@given(events=EVENTS, capacity=st.integers(6, 9), at=st.integers(0, 59), share=st.integers(1, 4))
def test_a_predicted_record_that_is_used_is_like_a_demanded_one(name, events, capacity, at, share):
    plain, predicting = (Owner(name, capacity, events) for _ in range(2))
    for step, keys in enumerate(events):
        if step == at % len(events):
            for owner in (plain, predicting):
                owner.make_room(len(keys))
            # the first of the missing ones: the others are admitted behind them
            assert predicting.predict(predicting.table.partition(keys)[1][:share]) == []
        assert predicting.run(keys) == plain.run(keys)
        assert predicting.table.resident_keys == plain.table.resident_keys
    assert predicting.remaining() == plain.remaining()


@pytest.mark.parametrize("name", POLICIES)
@given(events=EVENTS, capacity=st.integers(6, 9), at=st.integers(0, 59), evicted=st.booleans(), count=st.integers(1, 4))
def test_a_wasted_prediction_leaves_the_policy_as_if_it_had_not_been(name, events, capacity, at, evicted, count):
    plain, predicting = (Owner(name, capacity, events) for _ in range(2))
    wasted = STRANGERS[:count]
    for step, keys in enumerate(events):
        if step == at % len(events):
            for owner in (plain, predicting):
                owner.make_room(count)
            assert predicting.predict(wasted) == []
            if not evicted:
                assert all(predicting.table.drop(key) for key in wasted)
        # a wasted record leaves before any that was used
        victims = predicting.run(keys)
        assert [key for key in victims if key not in wasted] == plain.run(keys)
        assert predicting.table.resident_keys - set(wasted) == plain.table.resident_keys
    for key in wasted:
        predicting.table.drop(key)
    assert predicting.remaining() == plain.remaining()


@pytest.mark.parametrize("name", POLICIES)
@given(events=EVENTS, capacity=st.integers(6, 9))
def test_a_key_that_was_predicted_in_vain_is_new_when_it_is_demanded(name, events, capacity):
    """Neither a count of uses nor a ghost: what the key does later is what a key does that was never there."""
    # the first key of the first event is wasted beforehand, then all events are run
    plain, predicting = (Owner(name, capacity, events) for _ in range(2))
    predicting.predict(events[0][:1])
    assert predicting.table.drop(events[0][0])
    assert [predicting.run(keys) for keys in events] == [plain.run(keys) for keys in events]
    assert predicting.remaining() == plain.remaining()
