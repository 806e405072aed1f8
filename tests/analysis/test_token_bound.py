import polars as pl
import pytest

from workbench.analysis.token_bound import token_bound
from workbench.schema import EventLog

MS = 1_000_000
STAGES = {"gdn": 4, "router": 1, "shared": 2, "gate_up": 6, "down": 4}
"""Milliseconds of the one layer; 3 more for the head: 20 in all."""
GB_PER_S = 1e9


def a_run(
    *, misses: int, wait_ms: float = 0.0, calls: float = 1.0, interval_ms: float = 20.0, hits: int | None = None
) -> pl.DataFrame:
    """Three tokens `interval_ms` apart on one layer of top-10; each miss moves a megabyte, a millisecond at 1 GB/s."""
    log = EventLog()
    for name, duration_ms in STAGES.items():
        log.add(0, "stage", name=name, phase="attribution", layer=0, position=0, duration_ns=duration_ms * MS)
    log.add(0, "stage", name="head", phase="attribution", layer=-1, position=0, duration_ns=3 * MS)
    for token in range(3):
        start_ns = int(token * interval_ms * MS)
        found = 10 - misses if hits is None else hits
        log.add(start_ns, "demand", phase="decode", store="expert", layer=0, hits=found, joined=0, misses=misses)
        for _ in range(misses):
            sizes = {"logical_bytes": 10**6, "physical_bytes": 10**6, "value": calls}
            log.add(start_ns, "ticket", phase="decode", store="expert", intent="exact", outcome="used_late", **sizes)
        log.add(start_ns + 1, "wait", phase="decode", store="expert", layer=0, duration_ns=int(wait_ms * MS))
        log.add(start_ns + int(interval_ms * MS) - 1, "token", phase="decode", position=token, committed_tokens=1)
    return log.frame()


def bound_ms(events: pl.DataFrame) -> float:
    return token_bound(events, GB_PER_S, 10)["e2e/dependency_bound_ms"]


def test_with_all_resident_the_bound_is_compute() -> None:
    metrics = token_bound(a_run(misses=0), GB_PER_S, 10)
    assert metrics["e2e/dependency_bound_ms"] == pytest.approx(20)
    assert metrics["e2e/bound_fraction"] == pytest.approx(1)
    assert metrics["e2e/bound_tps"] == pytest.approx(50)
    assert metrics["overlap/attribution_ratio"] == pytest.approx(1)


def test_reads_that_fit_behind_hits_and_the_shared_expert_cost_nothing() -> None:
    assert bound_ms(a_run(misses=5, wait_ms=1, interval_ms=21)) == pytest.approx(20)


def test_without_hits_the_shared_expert_alone_covers_the_first_read() -> None:
    assert bound_ms(a_run(misses=10, wait_ms=1, interval_ms=21)) == pytest.approx(20), "1 ms of read behind 2 ms of shared"


def test_reads_longer_than_compute_bind_and_the_last_expert_follows_them() -> None:
    # head, pre-router, 30 reads, one expert of ten
    assert bound_ms(a_run(misses=30, hits=0, wait_ms=30, interval_ms=50)) == pytest.approx(3 + 5 + 30 + 1)


def test_of_split_records_only_down_follows_the_last_read() -> None:
    assert bound_ms(a_run(misses=30, hits=0, wait_ms=30, interval_ms=50, calls=2.0)) == pytest.approx(3 + 5 + 30 + 0.4)


def test_stages_are_scaled_to_the_time_that_was_not_waited() -> None:
    metrics = token_bound(a_run(misses=0, wait_ms=10), GB_PER_S, 10)
    assert metrics["e2e/dependency_bound_ms"] == pytest.approx(10)
    assert metrics["overlap/attribution_ratio"] == pytest.approx(2)


def test_without_attribution_there_is_no_bound() -> None:
    assert token_bound(a_run(misses=1).filter(pl.col("kind") != "stage"), GB_PER_S, 10) == {}
