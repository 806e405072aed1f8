"""Every order in which records can complete, and many tickets with random cancels: nothing is lost, nothing is kept."""

import gc
import itertools
import random
import tracemalloc

import pytest

from workbench.policies.lru import Lru
from workbench.scheduling import RECORD_BITS, Origin, Pool, PredictedKey, Priority, Scheduler, SlotTable, TicketState


def one_pool(num_slots, on_final=None):
    slots = SlotTable(num_slots, Lru(num_slots))
    pool = Pool(name="expert", digest="0" * 64, slots=slots, sizes=lambda key, bits: (10, 12), parts=(RECORD_BITS,))
    return Scheduler([pool], on_final=on_final)


def check_all_orders(num_records):
    """One event of `num_records` misses for each permutation; each is a later event of the same scheduler."""
    scheduler = one_pool(num_records)
    slots = scheduler.pools["expert"].slots
    origin = Origin(request=0)
    for number, order in enumerate(itertools.permutations(range(num_records))):
        keys = range(number % 2 * num_records, (number % 2 + 1) * num_records)
        demand = scheduler.demand("expert", keys, origin, number)
        numbers = [issued.number for issued in scheduler.issue(number)]
        waiting = list(demand.tickets.values())
        left = dict.fromkeys(waiting)
        for position in order:
            scheduler.on_ready(numbers[position], ready_ns=number, now_ns=number)
            del left[waiting[position]]
            assert demand.missing(number) == list(left)
        assert slots.resident_keys == set(keys)
        assert scheduler.release(demand)
        assert {ticket.state for ticket in waiting} == {TicketState.RELEASED}
    return number + 1


def test_all_orders_of_eight_records():
    assert check_all_orders(8) == 40_320


@pytest.mark.soak
def test_all_orders_of_ten_records():
    assert check_all_orders(10) == 3_628_800


def run_tickets(scheduler, count, seed):
    """Random demands, predictions, completions, errors, cancels and hangs until `count` tickets were planned."""
    rng = random.Random(seed)
    flying, demands, now_ns = [], [], 0
    planned = scheduler.pools["expert"].counters
    while planned.misses + planned.predicted < count:
        now_ns += 1
        origin = Origin(request=rng.randrange(4), deadline_ns=now_ns + rng.randrange(50))
        if rng.random() < 0.5:
            predicted = [PredictedKey(key) for key in rng.sample(range(200), 4)]
            scheduler.prefetch("expert", predicted, origin, now_ns, priority=Priority(rng.randrange(1, 4)))
        demand = scheduler.demand("expert", rng.sample(range(200), 4), origin, now_ns)
        demands += [demand] if demand.open else []
        flying += [order.number for order in scheduler.issue(now_ns)]
        rng.shuffle(flying)
        for number in [flying.pop() for _ in range(rng.randrange(len(flying) + 1))]:
            if rng.random() < 0.05:
                scheduler.on_error(number, OSError(5, "planted"))
            else:
                scheduler.on_ready(number, ready_ns=now_ns, now_ns=now_ns)
        if rng.random() < 0.1:
            scheduler.cancel(rng.randrange(4))
        if rng.random() < 0.02:
            scheduler.expire(now_ns, 3)
        if len(demands) > 4:
            scheduler.release(demands.pop(0))
    for demand in demands:
        scheduler.release(demand)
    for number in flying:
        scheduler.on_ready(number, ready_ns=now_ns, now_ns=now_ns)


def test_ten_thousand_tickets_end_once_and_leave_nothing():
    ended = []
    scheduler = one_pool(32, lambda ticket: ended.append(ticket.number))
    run_tickets(scheduler, 10_000, seed=1)
    scheduler.close()
    for request in range(4):
        scheduler.finish(request)
    counters = scheduler.pools["expert"].counters
    # tickets that took over from one that hung are planned by neither a demand nor a prediction
    assert len(ended) == len(set(ended)) == max(ended) + 1 >= 10_000
    assert min(counters.stale, counters.cancelled, counters.retries, counters.unused, counters.promoted) > 0
    slots = scheduler.pools["expert"].slots
    assert slots.num_available == slots.num_slots == slots.num_free + len(slots.resident_keys)
    assert scheduler.reads.num_in_flight == 0


def test_memory_stays_flat():
    scheduler = one_pool(32)
    tracemalloc.start()
    try:
        run_tickets(scheduler, 2_000, seed=2)
        gc.collect()
        before_bytes, _ = tracemalloc.get_traced_memory()
        run_tickets(scheduler, 8_000, seed=3)
        gc.collect()
        after_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after_bytes - before_bytes < 32 * 1024
