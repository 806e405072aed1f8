import pytest

from workbench.scheduling import (
    GATE_UP_BITS,
    NEVER_NS,
    RECORD_BITS,
    Intent,
    Origin,
    PredictedKey,
    Priority,
    RequestStatus,
    Scheduler,
    SchedulerConfig,
    TicketState,
    Usefulness,
)


@pytest.fixture
def finals():
    return []


@pytest.fixture
def scheduler(rules, finals):
    import workbench.scheduling

    return rules.build_scheduler(workbench.scheduling, finals.append)


def ask(scheduler, keys, request=0, store="expert", now_ns=0, **about):
    return scheduler.demand(store, keys, Origin(request=request, **about), now_ns)


def guess(scheduler, keys, request=0, store="expert", now_ns=0, priority=Priority.P1, **about):
    predicted = [PredictedKey(key) for key in keys]
    return scheduler.prefetch(store, predicted, Origin(request=request, **about), now_ns, priority=priority)


def serve(scheduler, now_ns=0):
    """Everything that can go, goes and comes."""
    while orders := scheduler.issue(now_ns):
        for order in orders:
            scheduler.on_ready(order.number, ready_ns=now_ns, now_ns=now_ns)


def test_a_missed_key_goes_through_its_life(scheduler, finals):
    demand = ask(scheduler, [4], layer=2, now_ns=10, deadline_ns=50)
    ticket = demand.tickets[4]
    assert (demand.status, ticket.state, ticket.intent) == (RequestStatus.QUEUED, TicketState.QUEUED, Intent.EXACT)
    gate_up, down = scheduler.issue(20)
    assert (gate_up.bits, down.bits) == (GATE_UP_BITS, RECORD_BITS ^ GATE_UP_BITS)
    assert demand.missing(21) == [ticket]
    scheduler.on_ready(down.number, ready_ns=30, now_ns=31)
    assert ticket.state == TicketState.IN_FLIGHT
    assert demand.missing(32, [4], down.bits) == []
    assert demand.missing(32, [4], gate_up.bits) == [ticket]
    scheduler.on_ready(gate_up.number, ready_ns=40, now_ns=45)
    assert (demand.missing(46), ticket.state) == ([], TicketState.PINNED)
    assert scheduler.release(demand)
    assert finals == [ticket]
    assert (ticket.state, ticket.outcome) == (TicketState.RELEASED, Usefulness.USED_LATE)
    times = ticket.submit_ns, ticket.issue_ns, ticket.asked_ns, ticket.ready_ns, ticket.seen_ns, ticket.deadline_ns
    assert times == (10, 20, 21, 40, 45, 50)
    assert (ticket.logical_bytes, ticket.physical_bytes, ticket.completion, ticket.origin.layer) == (28, 30, 0, 2)


def test_hits_need_no_ticket(scheduler):
    scheduler.release(served := ask(scheduler, [1, 2]))
    assert not served.open
    demand = ask(scheduler, [1, 2])
    serve(scheduler)
    scheduler.release(demand)
    again = ask(scheduler, [2, 1, 2])
    assert (again.status, again.hits, again.tickets) == (RequestStatus.DONE, [2, 1], {})
    assert again.missing(0) == []


def test_two_requests_share_one_read(scheduler):
    first, second = ask(scheduler, [3], request=0), ask(scheduler, [3], request=1)
    assert second.joined == [3]
    assert first.tickets[3] is second.tickets[3]
    assert first.tickets[3].num_pins == 2
    assert len(scheduler.issue(0)) == 2
    scheduler.cancel(0)
    assert second.tickets[3].state == TicketState.IN_FLIGHT


def test_a_promoted_prediction_that_was_not_read_counts_as_exact(scheduler, finals):
    guess(scheduler, [3], deadline_ns=100)
    demand = ask(scheduler, [3], request=1, deadline_ns=40)
    ticket = demand.tickets[3]
    assert (ticket.intent, ticket.priority, ticket.deadline_ns) == (Intent.EXACT, Priority.P0, 40)
    serve(scheduler)
    assert demand.missing(50) == []
    scheduler.release(demand)
    counters = scheduler.pools["expert"].counters
    assert (counters.promoted, counters.exact_bytes, counters.predicted_bytes) == (1, 28, 0)


def test_a_prediction_read_in_time_is_predicted_and_used(scheduler, finals):
    guess(scheduler, [3])
    serve(scheduler)
    demand = ask(scheduler, [3])
    assert (demand.hits, demand.status) == ([3], RequestStatus.DONE)
    assert demand.missing(9) == []
    scheduler.release(demand)
    (ticket,) = finals
    assert (ticket.intent, ticket.outcome, ticket.demanded) == (Intent.PREDICTED, Usefulness.USED_ON_TIME, False)
    counters = scheduler.pools["expert"].counters
    assert (counters.predicted_bytes, counters.wasted_bytes, counters.demand_bytes) == (28, 0, 28)


def test_an_evicted_prediction_is_wasted(scheduler, finals):
    guess(scheduler, [3])
    serve(scheduler)
    scheduler.release(ask(scheduler, [0, 1, 2, 4, 5]))
    demand = ask(scheduler, [0, 1, 2, 4, 5, 6])
    assert finals[-1].key == 3 or any(ticket.key == 3 for ticket in finals)
    counters = scheduler.pools["expert"].counters
    assert counters.wasted_bytes == 28
    scheduler.release(demand)


def test_predictions_never_used_are_wasted_at_the_end(scheduler, finals):
    guess(scheduler, [3], priority=Priority.P3)
    serve(scheduler)
    scheduler.close()
    assert [ticket.outcome for ticket in finals] == [Usefulness.UNUSED]
    assert scheduler.pools["expert"].counters.wasted_bytes == 28


def test_an_exact_read_fails_after_its_last_attempt_and_takes_its_request_alone(scheduler):
    broken, fine = ask(scheduler, [1], request=0), ask(scheduler, [2], request=1)
    error = OSError(5, "planted")
    for _ in range(scheduler.config.max_attempts):
        for order in scheduler.issue(0):
            if order.ticket.key == 1 and order.bits == GATE_UP_BITS:
                scheduler.on_error(order.number, error)
            else:
                scheduler.on_ready(order.number, ready_ns=0, now_ns=0)
    with pytest.raises(OSError, match="planted"):
        broken.missing(0)
    assert fine.missing(0) == []
    assert scheduler.pools["expert"].slots.slot_of(1) is None
    scheduler.cancel(0)
    scheduler.release(fine)
    scheduler.close()


def test_a_read_that_hangs_starts_anew_in_another_slot(scheduler):
    demand = ask(scheduler, [1])
    hung = demand.tickets[1]
    old = scheduler.issue(0)
    first_slot = demand.slots[1]
    assert scheduler.expire(1000, 1000) == [hung]
    assert (hung.state, demand.tickets[1] is hung) == (TicketState.STALE, False)
    assert demand.slots[1] != first_slot
    serve(scheduler, 1001)
    assert demand.missing(1002) == []
    for order in old:
        scheduler.on_ready(order.number, ready_ns=2000, now_ns=2000)
    assert scheduler.pools["expert"].slots.slot_of(1) == demand.slots[1]
    scheduler.release(demand)


def test_a_read_that_hangs_too_often_fails(scheduler):
    demand = ask(scheduler, [1])
    for attempt in range(1, scheduler.config.max_attempts + 1):
        scheduler.issue(1000 * attempt)
        scheduler.expire(1000 * attempt + 1000, 1000)
    with pytest.raises(TimeoutError, match="hangs"):
        demand.missing(0)


def test_a_record_wanted_once_leaves_at_release(scheduler, finals):
    demand, other = ask(scheduler, [1, 2, 3]), ask(scheduler, [3], request=1)
    serve(scheduler)
    scheduler.release(demand, drop={1, 3})
    slots, counters = scheduler.pools["expert"].slots, scheduler.pools["expert"].counters
    assert (slots.resident_keys, counters.dropped, counters.evictions) == ({2, 3}, 1, 0)
    assert other.slots.keys() == {3}
    scheduler.release(other)
    scheduler.drop("expert", [2, 7])
    assert slots.resident_keys == {3}


def test_a_prediction_that_is_dropped_is_wasted(scheduler, finals):
    guess(scheduler, [3])
    serve(scheduler)
    scheduler.drop("expert", [3])
    assert scheduler.pools["expert"].counters.wasted_bytes == 28


def test_a_loan_ends_predictions_and_evicts_through_the_policy(scheduler, finals):
    scheduler.release(ask(scheduler, range(5)))
    demand = ask(scheduler, range(5))
    serve(scheduler)
    scheduler.release(demand)
    (waiting,) = guess(scheduler, [8], priority=Priority.P2).tickets
    loan = scheduler.lend("expert", 3)
    assert waiting.state == TicketState.CANCELLED
    assert loan.evicted == (0, 1)
    assert scheduler.pools["expert"].counters.evictions == 2
    assert guess(scheduler, [8]).refused == (8,)
    with pytest.raises(ValueError, match="pool expert has 3"):
        ask(scheduler, range(4))
    scheduler.take_back("expert")
    assert guess(scheduler, [8]).refused == ()


def test_an_event_larger_than_the_pool_must_run_in_passes(scheduler):
    with pytest.raises(ValueError, match="7 keys needs as many slots, pool expert has 6"):
        ask(scheduler, range(7))


def test_exact_reads_are_not_predicted(scheduler):
    with pytest.raises(ValueError, match="P0"):
        guess(scheduler, [1], priority=Priority.P0)


def test_a_prediction_past_its_deadline_is_not_read(scheduler, finals):
    guess(scheduler, [1], deadline_ns=10)
    assert scheduler.issue(11) == []
    assert [ticket.state for ticket in finals] == [TicketState.CANCELLED]


def test_first_parts_of_all_records_go_before_the_second(scheduler):
    ask(scheduler, [1, 2])
    assert [(order.ticket.key, order.bits) for order in scheduler.issue(0)] == [(1, 3), (2, 3), (1, 4), (2, 4)]


def test_earlier_deadlines_go_first(scheduler):
    ask(scheduler, [1], deadline_ns=90)
    ask(scheduler, [2], deadline_ns=30, request=1)
    assert [order.ticket.key for order in scheduler.issue(0, limit=1)] == [2]


def test_open_demands_keep_a_request_and_a_scheduler_from_ending(scheduler):
    demand = ask(scheduler, [1])
    with pytest.raises(ValueError, match="still holds 1 demands"):
        scheduler.finish(0)
    with pytest.raises(ValueError, match="still hold demands"):
        scheduler.close()
    scheduler.release(demand)
    scheduler.finish(0)
    scheduler.close()


def test_a_step_that_does_not_exist_is_refused(scheduler):
    ticket = ask(scheduler, [1]).tickets[1]
    with pytest.raises(ValueError, match="can't go from queued to pinned"):
        ticket.move(TicketState.PINNED)


def test_defaults_hold_together():
    config = SchedulerConfig()
    assert Scheduler([], config).reads.num_in_flight == 0
    assert Origin(request=0).deadline_ns == NEVER_NS
