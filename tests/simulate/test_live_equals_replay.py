"""The scheduler, fed with instant reads, misses exactly what the replay misses: one set of policy objects, one order of calls."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.policies import make
from workbench.scheduling.pool import Pool
from workbench.scheduling.scheduler import Scheduler
from workbench.scheduling.slots import SlotTable
from workbench.scheduling.ticket import Origin
from workbench.simulate.replay import miss_counts

EVENTS = st.lists(st.lists(st.integers(0, 15), min_size=1, max_size=4, unique=True), max_size=60)


def live_misses(events, capacity, policy):
    slots = SlotTable(capacity, make(policy, capacity=capacity))
    scheduler = Scheduler([Pool(name="expert", digest="", slots=slots, sizes=lambda key, bits: (1, 1))])
    misses = []
    for now_ns, keys in enumerate(events):
        demand = scheduler.demand("expert", keys, Origin(request=0), now_ns)
        for order in scheduler.issue(now_ns):
            scheduler.on_ready(order.number, ready_ns=now_ns, now_ns=now_ns)
        assert not demand.missing(now_ns)
        scheduler.release(demand)
        misses.append(len(demand.misses))
    return misses


@pytest.mark.parametrize("policy", ["lru", "lfru", "arc", "s3-fifo"])
@given(events=EVENTS, capacity=st.integers(4, 9))
def test_live_decisions_are_the_replays(policy, events, capacity):
    assert live_misses(events, capacity, policy) == miss_counts(events, capacity, policy).tolist()
