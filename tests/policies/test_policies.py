"""What holds for every policy, and how they are named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.errors import BadInput
from workbench.policies import POLICIES, make

ONLINE = [name for name in POLICIES if name != "belady"]
EVENTS = st.lists(st.lists(st.integers(0, 15), min_size=1, max_size=4, unique=True), max_size=80)


@pytest.mark.parametrize("name", POLICIES)
@given(events=EVENTS, capacity=st.integers(6, 9), leased=st.integers(0, 15), room_first=st.booleans())
def test_residents_are_what_the_owner_thinks(name, events, capacity, leased, room_first):
    """Victims are distinct residents, never protected; forgotten keys are gone; both orders of admission work."""
    policy = make(name, capacity=capacity, **({"events": events} if name == "belady" else {}))
    resident = set()
    for step, event in enumerate(events):
        hits = [key for key in event if key in resident]
        misses = [key for key in event if key not in resident]
        overflow = max(0, len(resident) + len(misses) - capacity)
        protected = {*event, leased}
        policy.start_event()
        policy.touch(hits)
        if not room_first:
            policy.admit(misses)
        victims = policy.evict(overflow, protected)
        if room_first:
            policy.admit(misses)
        assert len(victims) == len(set(victims)) == overflow
        assert not protected & set(victims)
        assert set(victims) <= resident
        resident = resident - set(victims) | set(misses)
        if step % 7 == 6:
            policy.forget(event[0])
            resident.remove(event[0])
    assert set(policy.evict(len(resident), ())) == resident


@pytest.mark.parametrize("name", POLICIES)
def test_an_owner_that_protects_too_much_is_told(name):
    policy = make(name, capacity=4, **({"events": [[1, 2]]} if name == "belady" else {}))
    policy.start_event()
    policy.admit([1, 2])
    with pytest.raises(ValueError, match="residents are unprotected"):
        policy.evict(2, {1})


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(BadInput, match=r"no cache policy 'lfrux', did you mean lfru\?"):
        make("lfrux", capacity=4)
    with pytest.raises(BadInput, match=r"belady has no setting 'event', did you mean events\?"):
        make("belady", capacity=4, event=[])
    with pytest.raises(BadInput, match="lru has no setting 'size'"):
        make("lru", capacity=4, size=3)


def test_capacity_must_hold_a_record():
    with pytest.raises(ValueError, match="at least one record"):
        make("lru", capacity=0)
