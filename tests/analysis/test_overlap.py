import math

import pytest

from workbench.analysis.overlap import DECODE_SCHEMA, decode_measures
from workbench.schema import EventLog

MS = 1_000_000


def planted():
    """Tokens end at 100, 110 and 120 ms; what lies before the first end, and what is not decode, does not count."""
    log = EventLog()
    for end in (100, 110, 120):
        log.add(end * MS, "token", phase="decode", duration_ns=9 * MS, committed_tokens=1)
    for at, phase in ((95, "decode"), (101, "decode"), (111, "decode"), (112, "prefill")):
        log.add(at * MS, "wait", phase=phase, store="expert", duration_ns=2 * MS)
        log.add(at * MS, "readback", phase=phase, duration_ns=MS)
    log.add(102 * MS, "wait", phase="decode", store="ple", duration_ns=MS)
    log.add(101 * MS, "demand", phase="decode", store="expert", misses=3)
    log.add(101 * MS, "demand", phase="decode", store="ple", misses=5)
    ticket(log, 101, 105)
    ticket(log, 103, 106)
    ticket(log, 104, 119, outcome="unused")
    ticket(log, 104, 105, outcome="failed")
    ticket(log, 104, 118, store="ple", bytes_=500)
    ticket(log, 90, 99)
    return log.frame()


def ticket(log, submit, ready, *, store="expert", outcome="used_late", bytes_=1_000_000):
    times = {"submit_ns": submit * MS, "ready_ns": ready * MS}
    log.add(
        submit * MS,
        "ticket",
        phase="decode",
        store=store,
        outcome=outcome,
        logical_bytes=bytes_,
        physical_bytes=2 * bytes_,
        **times,
    )


def test_measures_count_the_intervals_between_decoded_tokens():
    assert decode_measures(planted()) == {
        "token_ms": pytest.approx(10.0),
        "expert_wait_ms": pytest.approx(2.0),
        "ple_wait_ms": pytest.approx(0.5),
        "io_ms": pytest.approx(2.5),
        "readback_ms": pytest.approx(1.0),
        "read_gbps": pytest.approx(4e6 / 1e9 / 0.005),
        "demand_bytes": pytest.approx((2_000_000 + 500) / 2),
        "wasted_bytes": pytest.approx(500_000),
        "misses": 1.5,
        "page_misses": 2.5,
    }
    assert decode_measures(planted()).keys() == DECODE_SCHEMA.keys()


def test_a_run_of_one_token_measures_nothing():
    log = EventLog()
    log.add(MS, "token", phase="decode", duration_ns=MS, committed_tokens=1)
    assert all(math.isnan(value) for value in decode_measures(log.frame()).values())


def test_without_reads_there_is_no_rate():
    log = EventLog()
    for end in (1, 2):
        log.add(end * MS, "token", phase="decode", duration_ns=MS, committed_tokens=1)
    measures = decode_measures(log.frame())
    assert math.isnan(measures.pop("read_gbps"))
    assert measures == {"token_ms": 1.0, **dict.fromkeys(measures.keys() - {"token_ms"}, 0.0)}
