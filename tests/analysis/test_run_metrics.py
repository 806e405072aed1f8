import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.analysis.run_metrics import run_metrics, token_series, union_ns
from workbench.schema import METRICS, EventLog

MS = 1_000_000


def a_run() -> pl.DataFrame:
    """Prefill of 10 tokens in 20 ms, then three tokens 10 ms apart; one expert read of 4 ms, half of it exposed."""
    log = EventLog()
    log.add(0, "mark", name="request_start", request=0)
    log.add(20 * MS, "token", request=0, phase="prefill", duration_ns=20 * MS, committed_tokens=10)
    for i in range(3):
        log.add((21 + 10 * i) * MS, "token", request=0, phase="decode", position=10 + i, duration_ns=10 * MS, committed_tokens=1)
    log.add(25 * MS, "demand", phase="decode", store="expert", layer=0, hits=8, joined=0, misses=2, logical_bytes=1000)
    for ready_ms in (28, 29):
        log.add(
            25 * MS, "ticket", phase="decode", store="expert", intent="exact", outcome="used_late", submit_ns=25 * MS,
            ready_ns=ready_ms * MS, seen_ns=ready_ms * MS + 1000, logical_bytes=100, physical_bytes=128, queue_depth=2,
        )  # fmt: skip
    log.add(27 * MS, "wait", phase="decode", store="expert", layer=0, duration_ns=2 * MS)
    return log.frame()


def test_figures_follow_from_the_events() -> None:
    metrics = run_metrics(a_run())
    expected = {
        "e2e/prefill_tps": 500.0,
        "e2e/decode_tps": 100.0,
        "e2e/ttft_ms": 20.0,
        "e2e/tpot_p50_ms": 10.0,
        "routing/decode_hit_rate": 0.8,
        "routing/misses_per_token": 2 / 3,
        "storage/expert_exact_bytes": 200.0,
        "storage/expert_physical_bytes": 256.0,
        "storage/expert_late_fraction": 1.0,
        "storage/expert_submit_to_ready_p50_us": 3500.0,
        "storage/expert_ready_to_seen_p50_us": 1.0,
        "overlap/io_wall_ms": 4.0,
        "overlap/exposed_wait_ms": 2.0,
        "overlap/hidden_fraction": 0.5,
        "e2e/demand_bytes_per_token": 200 / 3,
        "e2e/wasted_bytes_per_token": 0.0,
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)
    assert metrics.keys() <= METRICS.keys()


def test_unused_predictions_are_wasted_not_demanded() -> None:
    log = EventLog()
    log.add(5, "token", request=0, phase="decode", committed_tokens=1)
    for outcome in ("used_on_time", "unused"):
        log.add(
            1, "ticket", phase="decode", store="expert", intent="predicted", outcome=outcome, submit_ns=1, ready_ns=2,
            seen_ns=None, logical_bytes=70, physical_bytes=128, queue_depth=1,
        )  # fmt: skip
    metrics = run_metrics(log.frame())
    assert metrics["storage/expert_demand_bytes"] == 70
    assert metrics["storage/expert_wasted_bytes"] == 70
    assert metrics["storage/expert_overfetch_ratio"] == 2
    assert metrics["e2e/demand_bytes_per_token"] == 70
    assert metrics["e2e/wasted_bytes_per_token"] == 70


@pytest.mark.parametrize("others", [0, 2])
def test_a_read_that_was_given_up_moved_bytes_and_has_no_latency(others: int) -> None:
    log = EventLog()
    for ready_ns in (None, *[1000] * others):
        log.add(
            1, "ticket", phase="prefill", store="expert", intent="predicted", outcome="unused", submit_ns=0, ready_ns=ready_ns,
            logical_bytes=70, physical_bytes=128, queue_depth=1,
        )  # fmt: skip
    metrics = run_metrics(log.frame())
    assert metrics["storage/expert_wasted_bytes"] == 70 * (1 + others)
    assert metrics["storage/expert_physical_bytes"] == 128 * (1 + others)
    assert metrics.get("storage/expert_submit_to_ready_p50_us") == (1.0 if others else None)


def test_a_read_that_was_given_up_after_compute_asked_for_it_has_no_time() -> None:
    log = EventLog()
    add_ticket(log, "expert", outcome="used_late", submit_ns=0, ready_ns=None, seen_ns=None, deadline_ns=3)
    add_ticket(log, "expert", outcome="used_on_time", submit_ns=0, ready_ns=2, seen_ns=2, deadline_ns=3)
    metrics = run_metrics(log.frame())
    assert metrics["overlap/io_wall_ms"] == 2e-6


def test_late_reads_are_a_share_of_those_that_were_demanded() -> None:
    log = EventLog()
    for outcome in ("used_late", "used_on_time", "unused", "unused"):
        add_ticket(log, "expert", outcome=outcome, submit_ns=0, ready_ns=2, seen_ns=2, deadline_ns=3)
    assert run_metrics(log.frame())["storage/expert_late_fraction"] == 0.5


def test_one_token_has_no_decode_rate_and_no_series() -> None:
    log = EventLog()
    log.add(5, "token", request=0, phase="decode", committed_tokens=1)
    assert "e2e/decode_tps" not in run_metrics(log.frame())
    assert token_series(log.frame()) == {}


def test_rates_do_not_span_requests() -> None:
    log = EventLog()
    for request, times in ((0, (0, 10, 20)), (1, (1000, 1010, 1020))):
        for t_ms in times:
            log.add(t_ms * MS, "token", request=request, phase="decode", committed_tokens=1)
    assert run_metrics(log.frame())["e2e/decode_tps"] == pytest.approx(100.0)


def test_series_put_each_read_into_its_token() -> None:
    series = token_series(a_run())
    assert series["e2e/tpot_p50_ms"] == [10.0, 10.0]
    assert series["storage/expert_exact_bytes"] == [200.0, 0.0]
    assert series["overlap/exposed_wait_ms"] == [2.0, 0.0]


def test_an_empty_run_has_no_figures() -> None:
    nothing = {"io_wall_ms", "exposed_wait_ms", "compute_idle_for_exact_io_ms", "readback_ms"}
    assert run_metrics(EventLog().frame()) == {f"overlap/{name}": 0.0 for name in nothing}


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12))
def test_union_equals_counting_covered_points(intervals: list[tuple[int, int]]) -> None:
    starts = np.array([start for start, _ in intervals], dtype=np.int64)
    ends = np.array([start + length for start, length in intervals], dtype=np.int64)
    covered = {point for start, end in zip(starts, ends) for point in range(start, end)}
    assert union_ns(starts, ends) == len(covered)


def test_what_lies_between_two_turns_is_no_tokens_time() -> None:
    log = EventLog()
    for start_ms, request in ((0, 0), (100, 1), (500, 0)):
        log.add(start_ms * MS, "mark", name="request_start", request=request)
        for i in range(3):
            ends = (start_ms + 20 + 10 * i) * MS
            log.add(ends, "token", request=request, phase="decode", position=i, duration_ns=10 * MS, committed_tokens=1)
    metrics = run_metrics(log.frame())
    assert metrics["e2e/decode_tps"] == pytest.approx(100.0)
    assert metrics["e2e/tpot_p95_ms"] == pytest.approx(10.0)


def add_ticket(log: EventLog, store: str, **columns: object) -> None:
    common = {"intent": "exact", "outcome": "used_late", "submit_ns": 0, "ready_ns": MS, "seen_ns": MS, "logical_bytes": 4096}
    log.add(0, "ticket", phase="decode", store=store, **common | {"physical_bytes": 4096, "value": 1.0} | columns)


def test_calls_that_several_tickets_shared_count_once() -> None:
    log = EventLog()
    for _ in range(8):
        add_ticket(log, "ple", value=1 / 8)
    for _ in range(2):
        add_ticket(log, "ple", value=1 / 2)
    add_ticket(log, "ple")
    log.add(0, "demand", store="ple", hits=0, joined=0, misses=11, value=11.0, logical_bytes=11 * 32)
    metrics = run_metrics(log.frame())
    assert metrics["storage/ple_read_ops"] == 3
    assert metrics["storage/ple_coalesced_runs"] == 2
    assert metrics["storage/ple_read_size_p50_bytes"] == 8192
    assert metrics["storage/ple_physical_bytes"] == metrics["ple/physical_bytes"] == 11 * 4096


def test_records_read_in_parts_count_each_call() -> None:
    log = EventLog()
    add_ticket(log, "expert", physical_bytes=3000, value=2.0)
    add_ticket(log, "expert", physical_bytes=3000, value=None)
    metrics = run_metrics(log.frame())
    assert metrics["storage/expert_read_ops"] == 3
    assert metrics["storage/expert_read_size_p50_bytes"] == 1500
    assert metrics["storage/expert_coalesced_runs"] == 0


def test_slack_is_the_time_between_ready_and_use() -> None:
    log = EventLog()
    for asked_ms in (0, 3, 7):
        add_ticket(log, "ple", deadline_ns=asked_ms * MS, outcome="used_late" if asked_ms == 0 else "used_on_time")
    log.add(0, "demand", store="ple", hits=0, joined=0, misses=3, value=4.0, logical_bytes=128)
    log.add(0, "mark", store="ple", name="rows_unique", value=2.0)
    log.add(0, "mark", store="ple", name="pages_requested", value=5.0)
    metrics = run_metrics(log.frame())
    assert metrics["storage/ple_slack_p50_us"] == metrics["ple/ready_to_use_slack_p50_us"] == 2000
    expected = {"rows_requested": 4, "rows_unique": 2, "pages_requested": 5, "pages_unique": 3, "logical_bytes": 128}
    assert {name: metrics[f"ple/{name}"] for name in expected} == expected


def test_used_predictions_are_a_share_of_all() -> None:
    log = EventLog()
    for outcome in ("used_on_time", "used_late", "unused", "unused"):
        add_ticket(log, "expert", intent="predicted", outcome=outcome)
    assert run_metrics(log.frame())["storage/expert_useful_prefetch_ratio"] == 0.5


def test_host_time_is_what_neither_waits_nor_evaluates() -> None:
    log = EventLog()
    log.add(20 * MS, "token", request=0, phase="decode", duration_ns=20 * MS, committed_tokens=1)
    log.add(1 * MS, "readback", phase="decode", duration_ns=5 * MS)
    log.add(7 * MS, "evaluate", phase="decode", duration_ns=4 * MS)
    log.add(11 * MS, "wait", phase="decode", store="expert", duration_ns=3 * MS)
    log.add(15 * MS, "wait", phase="decode", store="ple", duration_ns=1 * MS)
    for name, duration_ms in (("gate_up", 2), ("gate_up", 4), ("down", 5)):
        log.add(0, "wave", name=name, store="expert", phase="decode", duration_ns=duration_ms * MS)
    metrics = run_metrics(log.frame())
    assert metrics["overlap/host_ms"] == 7
    assert metrics["overlap/compute_idle_for_exact_io_ms"] == 4
    assert metrics["overlap/exposed_wait_ms"] == 3
    assert metrics["overlap/wave_gate_up_ready_ms"] == 3
    assert metrics["overlap/wave_down_ready_ms"] == 5
