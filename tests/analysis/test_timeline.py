"""A planted token: what it did, track by track, and what its waits were for."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.analysis.timeline import (
    IN_FLIGHT,
    QUEUED,
    READBACK,
    STAGE,
    TOKEN,
    UNSEEN,
    WAIT,
    choose_pass,
    exposed_waits,
    free_intervals,
    lanes_of,
    numbered_passes,
    token_spans,
)  # fmt: skip
from workbench.analysis.trace_events import trace_document
from workbench.errors import BadInput
from workbench.schema import EventLog

US = 1_000
TOP = {"request": 0, "phase": "decode"}


def planted(attribution=True):
    """Prefill until 100 us, then tokens of 100, 300 and 200 us. The second reads two records and a page, two layers deep."""
    log = EventLog()
    log.add(100 * US, "token", request=0, phase="prefill", duration_ns=100 * US, committed_tokens=8)
    for end, took in ((200, 100), (500, 290), (700, 200)):
        log.add(end * US, "token", **TOP, position=end, duration_ns=took * US, committed_tokens=1)
    for layer, (start, end) in enumerate(((230, 240), (380, 390))):
        log.add(start * US, "readback", **TOP, layer=layer, duration_ns=(end - start) * US)
    read(log, 17, 240, 250, 300, 310, layer=0)
    read(log, 18, 240, 245, 330, 332, layer=0)
    read(log, 5, 205, 210, 260, 350, layer=1, store="ple")
    wait(log, 260, 300, layer=0, store="expert", guarded=1)
    wait(log, 310, 330, layer=0, store="expert", guarded=1)
    wait(log, 340, 350, layer=1, store="ple", guarded=1)
    wait(log, 150, 160, layer=0, store="expert", guarded=1)
    if attribution:
        for position in (900, 901):
            for layer, name, took in stages():
                log.add(800 * US, "stage", phase="attribution", name=name, layer=layer, position=position, duration_ns=took * US)
        wait(log, 810, 900, layer=0, store="expert", guarded=1, phase="attribution")
    return log.frame()


def stages():
    both = [(layer, name, took) for layer in (0, 1) for name, took in (("router", 5), ("shared", 1), ("gate_up", 2), ("down", 1))]
    return [(0, "gdn", 10), (1, "ple", 1), (1, "qsa", 15), (-1, "head", 8), *both]


def read(log, key, submit, issue, ready, seen, *, layer, store="expert"):
    times = {"submit_ns": submit * US, "ready_ns": ready * US, "seen_ns": seen * US}
    log.add(
        issue * US, "ticket", **TOP, store=store, layer=layer, identity=key, intent="exact", outcome="used_late",
        physical_bytes=4096, **times,
    )  # fmt: skip


def wait(log, start, end, *, phase="decode", **columns):
    log.add(start * US, "wait", request=0, phase=phase, duration_ns=(end - start) * US, consumed=1, **columns)


def spans_of(events, number=2):
    return token_spans(events, choose_pass(numbered_passes(events), number), num_experts=16)


def rows(spans, track):
    part = spans.filter(track=track).sort("start_ns")
    return [(name, start // US, end // US) for name, start, end in part.select("name", "start_ns", "end_ns").iter_rows()]


def test_tokens_follow_each_other_and_the_median_one_is_chosen():
    tokens = numbered_passes(planted())
    assert tokens.select("number", "start_ns", "end_ns").rows() == [
        (1, 100 * US, 200 * US), (2, 200 * US, 500 * US), (3, 500 * US, 700 * US),
    ]  # fmt: skip
    assert choose_pass(tokens, None)["number"] == 3
    with pytest.raises(BadInput, match="no token 4: the run has decoded tokens 1 to 3"):
        choose_pass(tokens, 4)
    with pytest.raises(BadInput, match="decoded nothing"):
        choose_pass(tokens.clear(), None)


def test_the_first_token_of_a_run_without_prefill_starts_with_its_pass():
    events = planted().filter(phase="decode")
    assert numbered_passes(events)["start_ns"][0] == 100 * US


def test_a_token_has_its_waits_readbacks_and_tickets_and_nothing_of_its_neighbours():
    spans = spans_of(planted())
    assert rows(spans, TOKEN) == [("token 2", 200, 500)]
    assert rows(spans, WAIT) == [
        ("layer 0, expert reads", 260, 300), ("layer 0, expert reads", 310, 330), ("layer 1, n-gram reads", 340, 350),
    ]  # fmt: skip
    assert rows(spans, READBACK) == [("layer 0", 230, 240), ("layer 1", 380, 390)]
    reads = spans.filter(track="expert reads", name="layer 1, expert 1").sort("start_ns", "end_ns")
    assert {(phase, start // US, end // US) for phase, start, end in reads.select("phase", "start_ns", "end_ns").iter_rows()} == {
        (None, 240, 310), (QUEUED, 240, 250), (IN_FLIGHT, 250, 300), (UNSEEN, 300, 310),
    }  # fmt: skip
    assert set(spans.filter(track="expert reads")["lane"]) == {0, 1}
    assert set(spans.filter(track="n-gram reads")["name"]) == {"page 5"}


def test_a_read_that_began_with_an_earlier_token_is_cut_to_this_one():
    log = EventLog()
    for end in (100, 200):
        log.add(end * US, "token", **TOP, duration_ns=100 * US, committed_tokens=1)
    read(log, 3, 60, 70, 130, 140, layer=0)
    spans = spans_of(log.frame())
    phases = spans.filter(track="expert reads").sort("end_ns", "phase").select("phase", "start_ns", "end_ns").rows()
    assert phases == [(IN_FLIGHT, 100 * US, 130 * US), (None, 100 * US, 140 * US), (UNSEEN, 130 * US, 140 * US)]


def test_stages_keep_their_order_and_shares_and_fill_what_the_waits_leave():
    spans = spans_of(planted()).filter(track=STAGE).sort("start_ns")
    by_layer = list(dict.fromkeys(spans.select("layer", "name").rows()))
    assert by_layer == [
        (0, "gdn"), (0, "router"), (0, "shared"), (0, "gate_up"), (0, "down"), (1, "ple"), (1, "qsa"), (1, "router"),
        (1, "shared"), (1, "gate_up"), (1, "down"), (-1, "head"),
    ]  # fmt: skip
    length = spans.with_columns(ns=spans["end_ns"] - spans["start_ns"])
    # 40 us until the first read-back, 150 us to the second less 70 us of waits, 110 us behind it
    assert length["ns"].sum() == (40 + 80 + 110) * US
    assert length.filter(layer=0, name="gdn")["ns"].sum() == pytest.approx(40 * US * 10 / 15, abs=2)
    assert length.filter(layer=-1)["ns"].sum() == pytest.approx(110 * US * 8 / 12, abs=2)
    waits = [(260, 300), (310, 330), (340, 350)]
    for start, end in spans.select("start_ns", "end_ns").iter_rows():
        assert all(end <= low * US or start >= high * US for low, high in waits)


def test_without_an_attribution_run_there_are_no_stages():
    assert STAGE not in spans_of(planted(attribution=False))["track"]


def test_exposed_waits_are_told_by_layer_and_class():
    events = planted()
    of_token = exposed_waits(events, choose_pass(numbered_passes(events), 2))
    assert of_token.select("layer", "store", "waits", "wait_ms", "share").rows() == [
        (0, "expert", 2.0, pytest.approx(0.06), pytest.approx(6 / 7)), (1, "ple", 1.0, pytest.approx(0.01), pytest.approx(1 / 7)),
    ]  # fmt: skip
    mean = exposed_waits(events)
    assert mean["wait_ms"].to_list() == [pytest.approx(0.07 / 3), pytest.approx(0.01 / 3)]
    assert mean["share"].sum() == pytest.approx(1.0)
    nothing = exposed_waits(events, choose_pass(numbered_passes(events), 3))
    assert nothing.is_empty()


def test_a_trace_has_what_the_format_requires():
    about = {"run": "generate/x", "evidence": "emulated"}
    document = trace_document(spans_of(planted()), about)
    assert (document["displayTimeUnit"], document["otherData"]) == ("ms", about)
    complete = [event for event in document["traceEvents"] if event["ph"] == "X"]
    named = [event for event in document["traceEvents"] if event["ph"] == "M"]
    assert len(complete) + len(named) == len(document["traceEvents"])
    for event in complete:
        assert {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args"} == event.keys()
        assert event["ts"] >= 0
        assert event["dur"] > 0
        assert event["ts"] + event["dur"] <= 300 + 1e-9
    assert {event["name"] for event in named} == {"process_name", "thread_name", "thread_sort_index"}
    assert all(event["args"] for event in named)
    threads = {event["tid"]: event["args"]["name"] for event in named if event["name"] == "thread_name"}
    assert sorted(threads.values()) == [
        "expert reads 1", "expert reads 2", "exposed wait", "n-gram reads", "read-back", "stages", "token",
    ]  # fmt: skip
    assert {event["tid"] for event in complete} == threads.keys()
    assert "emulated" in named[0]["args"]["name"]


def test_spans_of_a_thread_are_nested_or_apart_outer_ones_first():
    events = [event for event in trace_document(spans_of(planted()), {})["traceEvents"] if event["ph"] == "X"]
    for thread in {event["tid"] for event in events}:
        open_until = []
        for event in (event for event in events if event["tid"] == thread):
            while open_until and open_until[-1] <= event["ts"] + 1e-6:
                open_until.pop()
            end = event["ts"] + event["dur"]
            assert not open_until or end <= open_until[-1] + 1e-6
            open_until.append(end)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), max_size=30))
def test_no_two_intervals_of_a_lane_overlap_and_no_lane_is_wasted(pairs):
    intervals = sorted((start, start + length) for start, length in pairs)
    lanes = lanes_of([start for start, _ in intervals], [end for _, end in intervals])
    for lane in set(lanes):
        own = [interval for interval, place in zip(intervals, lanes, strict=True) if place == lane]
        assert all(earlier[1] <= later[0] for earlier, later in itertools.pairwise(own))
    at_once = max((sum(low <= at < high for low, high in intervals) for at, _ in intervals), default=0)
    assert len(set(lanes)) == at_once


def test_free_intervals_are_what_nothing_takes():
    assert free_intervals(0, 10, []) == [(0, 10)]
    assert free_intervals(0, 10, [(0, 2), (4, 5), (9, 12)]) == [(2, 4), (5, 9)]
    assert free_intervals(5, 10, [(0, 7), (20, 30)]) == [(7, 10)]
    assert free_intervals(5, 10, [(0, 30)]) == []
