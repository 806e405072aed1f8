"""What holds for every policy, and how they are named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.errors import BadInput
from workbench.policies import POLICIES, make
from workbench.policies.hot_set import HotSet
from workbench.simulate.replay import miss_counts

EVENTS = st.lists(st.lists(st.integers(0, 15), min_size=1, max_size=4, unique=True), max_size=80)


def make_any(name, capacity, events):
    """Any policy; layer-quota sees four layers of four experts."""
    settings = {"belady": {"events": events}, "layer-quota": {"num_experts": 4}}
    return make(name, capacity=capacity, **settings.get(name, {}))


@pytest.mark.parametrize("name", POLICIES)
@given(events=EVENTS, capacity=st.integers(6, 9), leased=st.integers(0, 15), room_first=st.booleans())
def test_residents_are_what_the_owner_thinks(name, events, capacity, leased, room_first):
    """Victims are distinct residents, never protected; forgotten keys are gone; both orders of admission work."""
    policy = make_any(name, capacity, events)
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
    policy = make_any(name, 4, [[1, 2]])
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


def test_what_a_policy_cannot_do_without_is_named():
    with pytest.raises(BadInput, match="cache policy belady needs events"):
        make("belady", capacity=4)
    with pytest.raises(BadInput, match="cache policy layer-quota needs num_experts"):
        make("layer-quota", capacity=4)


def test_a_layer_above_its_quota_gives_the_victim():
    policy = make("layer-quota", capacity=4, num_experts=10)
    policy.start_event()
    policy.admit([0, 1, 2, 10])
    policy.start_event()
    policy.touch([0])
    policy.admit([11])
    assert policy.evict(1, {0, 11}) == [1]
    assert policy.evict(1, {0, 2}) == [10]


def test_the_score_weighs_worth():
    policy = make("score", capacity=4, worth=lambda key: 2.0 if key == 1 else 1.0)
    policy.start_event()
    policy.admit([1, 2])
    policy.start_event()
    assert policy.evict(1, ()) == [2]


def test_the_score_learns_what_is_used_again():
    # ten keys come back after 20 others, between them keys that never do: too far for LRU's 15 records
    events = [(i // 2 % 10,) if i % 2 else (100 + i,) for i in range(4000)]
    assert miss_counts(events, 15, "lru").sum() == 4000
    assert miss_counts(events, 15, "score")[2000:].sum() == 1000


def test_capacity_must_hold_a_record():
    with pytest.raises(ValueError, match="at least one record"):
        make("lru", capacity=0)


def test_a_hot_set_ranks_by_its_own_events():
    hot = HotSet()
    for keys in ([1, 2, 3], [1, 2], [1, 4]):
        hot.use(keys)
    # 1: three uses, just now; 4: one, just now; 2: two, one event ago; 3: one, two events ago
    assert hot.missing((), 9) == [1, 2, 4, 3]
    assert hot.missing({1, 4}, 1) == [2]
