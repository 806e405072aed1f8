"""Which passes generated tokens, and which intervals between their ends rates count."""

import numpy as np
import pytest

from workbench.errors import BadInput
from workbench.schema import EventLog
from workbench.schema.events import PAUSES
from workbench.schema.generated import Intervals, generated_passes, generated_tokens, passes


def a_pass(log, end, committed, *, phase="decode", request=0, took=5):
    log.add(end, "token", request=request, phase=phase, duration_ns=took, committed_tokens=committed)


def planted():
    """Two turns of request 0 and one of request 1, whose passes alternate with those of the second turn."""
    log = EventLog()
    log.add(0, "mark", name="request_start", request=0)
    a_pass(log, 10, 8, phase="prefill")
    a_pass(log, 20, 1)
    a_pass(log, 30, 3, phase="verify")
    log.add(30, "mark", name="request_start", request=0)
    log.add(31, "mark", name="request_start", request=1)
    a_pass(log, 100, 4, phase="prefill")
    for end, request, committed in ((110, 0, 2), (115, 1, 5), (130, 0, 4), (141, 1, 1)):
        a_pass(log, end, committed, phase="verify", request=request)
    log.add(150, "token", request=0, phase="attribution", duration_ns=9, committed_tokens=1)
    return log


def test_passes_of_generation_phases_generate_tokens():
    events = planted().frame()
    assert passes(events).height == 9
    assert generated_passes(events).select("end_ns", "committed_tokens").rows() == [
        (20, 1), (30, 3), (110, 2), (115, 5), (130, 4), (141, 1),
    ]  # fmt: skip
    assert generated_tokens(events) == 16


def test_intervals_begin_behind_the_first_pass_of_each_turn_and_request():
    intervals = Intervals.of(planted().frame())
    assert intervals.counted.select("before_ns", "end_ns", "committed_tokens").rows() == [
        (20, 30, 3), (110, 130, 4), (115, 141, 1),
    ]  # fmt: skip
    assert (intervals.num_tokens, intervals.time_ns) == (8, 10 + 20 + 26)
    assert intervals.token_ns().tolist() == pytest.approx([10 / 3] * 3 + [5.0] * 4 + [26.0])


def test_a_mark_at_the_end_of_a_pass_belongs_to_the_turn_behind_it():
    assert generated_passes(planted().frame())["turn_ns"].to_list() == [0, 0, 30, 31, 30, 31]


def test_events_lie_in_an_interval_of_their_own_request():
    log = planted()
    for t_ns, request in ((15, 0), (20, 0), (30, 0), (50, 0), (112, 0), (112, 1), (135, 0), (135, 1), (112, None), (50, None)):
        log.add(t_ns, "wait", request=request, phase="verify", duration_ns=1)
    log.add(25, "wait", request=0, phase="prefill", duration_ns=1)
    inside = Intervals.of(log.frame()).inside(log.frame().filter(kind="wait"))
    assert inside.select("t_ns", "request").rows() == [(20, 0), (30, 0), (112, 0), (135, 1), (112, None)]


def test_figures_of_a_pass_are_shared_by_its_tokens():
    log = planted()
    for t_ns, request, value in ((25, 0, 6), (30, 0, 3), (105, 0, 50), (120, 0, 8), (120, 1, 9), (None, 0, 7)):
        log.add(t_ns or 0, "ticket", request=request, phase="decode", ready_ns=t_ns, logical_bytes=value)
    tickets = log.frame().filter(kind="ticket")
    shared = Intervals.of(log.frame()).per_token(tickets, "logical_bytes", "ready_ns")
    assert shared.tolist() == [3.0] * 3 + [2.0] * 4 + [9.0]


def test_a_pass_that_committed_nothing_is_time_of_the_next():
    log = EventLog()
    for end, committed in ((10, 2), (20, 0), (30, 4)):
        a_pass(log, end, committed)
    intervals = Intervals.of(log.frame())
    assert (intervals.num_tokens, intervals.time_ns) == (4, 20)


@pytest.mark.parametrize("ends", [(), (10,)])
def test_fewer_than_two_passes_have_no_interval(ends):
    log = EventLog()
    for end in ends:
        a_pass(log, end, 3)
    intervals = Intervals.of(log.frame())
    assert (intervals.num_tokens, intervals.time_ns) == (0, 0)
    assert np.array_equal(intervals.token_ns(), [])
    assert intervals.inside(log.frame()).is_empty()
    assert intervals.per_token(log.frame(), "duration_ns", "t_ns").tolist() == []


def test_a_token_event_must_say_its_tokens():
    log = EventLog()
    log.add(1, "token", phase="decode", value=1.0)
    with pytest.raises(BadInput, match="a token event lacks committed_tokens"):
        Intervals.of(log.frame())


@pytest.mark.parametrize("pause", PAUSES)
def test_a_pause_is_no_time_of_a_pass(pause):
    log = planted()
    log.add(25, "mark", name=pause, duration_ns=4, value=3.0)
    log.add(120, "mark", name=pause, duration_ns=3, value=3.0)
    intervals = Intervals.of(log.frame())
    # the second one stopped the passes of both requests
    assert intervals.counted["took_ns"].to_list() == [10 - 4, 20 - 3, 26 - 3]
    assert intervals.time_ns == 46
    assert intervals.token_ns().tolist() == pytest.approx([6 / 3] * 3 + [17 / 4] * 4 + [23.0])
