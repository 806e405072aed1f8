"""Each detector fires on its planted run and is silent on a clean one."""

import numpy as np
import polars as pl
import pytest

from workbench.analysis.detectors import run_detectors
from workbench.schema import EVENT_SCHEMA, EventLog, fingerprint

TOKEN_NS = 10_000_000
TOP_K = 4


def figures(**metrics):
    named = {name.replace("__", "/"): value for name, value in metrics.items()}
    return {"routing/decode_hit_rate": 0.9, "storage/expert_bandwidth_gbps": 1.9} | named


def run_events(
    *, tokens=300, wait_ns=500_000, predicted=0, wasted=0, slowed=1.0, executed=None, guarded=TOP_K, consumed=TOP_K, seed=0
):
    """A decode: each token routes, demands, waits for one exact read, and may have predicted reads in flight before it."""
    log = EventLog()
    random = np.random.default_rng(seed)
    for position in range(tokens):
        start = position * TOKEN_NS
        where = {"request": 0, "phase": "decode", "position": position, "layer": 1, "store": "expert"}
        ids = sorted(random.choice(32, TOP_K, replace=False).tolist())
        log.add(start, "route", identity=fingerprint(ids), **where | {"store": None})
        ran = executed(position, ids) if executed else ids
        log.add(start, "demand", identity=fingerprint(ran), hits=TOP_K - 1, joined=0, misses=1, **where)
        beside = position % 2 == 0 and predicted + wasted > 0
        for number in range((predicted + wasted) * beside):
            outcome = "unused" if number < wasted else "used_on_time"
            add_ticket(log, start, where, 4_000_000, "predicted", outcome)
        latency = int(1_000_000 * random.lognormal(0, 0.3) * (slowed if beside else 1.0))
        add_ticket(log, start + 1, where, latency, "exact", "used_late")
        log.add(start, "wait", duration_ns=wait_ns, guarded=guarded, consumed=consumed, **where)
        log.add(start + TOKEN_NS, "token", duration_ns=TOKEN_NS, committed_tokens=1, **where | {"store": None, "layer": None})
    return log.frame()


def add_ticket(log, start, where, latency_ns, intent, outcome):
    sizes = {"logical_bytes": 1000, "physical_bytes": 1000}
    log.add(start, "ticket", intent=intent, outcome=outcome, submit_ns=start, ready_ns=start + latency_ns, **where | sizes)


def codes(events, metrics=None, control=None):
    return [finding.code for finding in find(events, metrics or figures(), control)]


def find(events, metrics, control=None):
    return run_detectors(events, metrics, bandwidth_bytes_per_s=2e9, control=control)


def test_a_clean_run_is_silent():
    assert codes(run_events()) == []
    assert codes(run_events(tokens=1000, predicted=1)) == [], "predictions that are used and slow nothing"


def test_hits_while_compute_stands_still():
    assert codes(run_events(wait_ns=3_000_000), figures(storage__expert_bandwidth_gbps=0.1)) == ["waiting_behind_hits"]
    assert codes(run_events(wait_ns=3_000_000), figures(routing__decode_hit_rate=0.2)) == ["waiting_behind_bandwidth"]
    low = figures(routing__decode_hit_rate=0.2, storage__expert_bandwidth_gbps=0.1)
    assert codes(run_events(wait_ns=3_000_000), low) == []


def test_exact_reads_slower_beside_predicted_ones():
    assert codes(run_events(tokens=1000, predicted=1, slowed=1.6)) == ["exact_reads_slower"]


def test_exact_reads_slower_than_in_the_control():
    control = run_events(tokens=500)
    assert codes(run_events(tokens=500, predicted=1, slowed=3.0), control=control)[0] == "exact_reads_slower"
    assert "exact_reads_slower" not in codes(run_events(tokens=500, predicted=1, seed=1), control=control)
    assert codes(run_events(tokens=500, slowed=3.0), control=control) == [], "nothing is predicted"


def test_more_bytes_a_token():
    assert codes(run_events(predicted=1, wasted=1)) == ["more_bytes"]
    control = run_events()
    assert codes(run_events(predicted=1), control=control) == ["more_bytes"]
    assert codes(run_events(seed=1), control=control) == []


def test_ids_of_a_predictor_that_were_executed():
    events = run_events(executed=lambda position, ids: [*ids[:-1], 99] if position == 17 else ids)
    (finding,) = find(events, figures())
    assert finding.code == "foreign_ids_executed"
    assert "1 of 300 layers" in finding.statement
    assert "position 17, layer 1" in finding.statement


def test_a_union_demanded_in_passes_is_not_foreign():
    events = run_events(tokens=2)
    first = events.filter(kind="demand").head(1)
    halves = [first.with_columns(pl.lit(part, pl.Int64).alias("identity")) for part in (7, first["identity"][0] - 7)]
    split = pl.concat([events.filter(~((pl.col("kind") == "demand") & (pl.col("position") == 0))), *halves])
    assert codes(split) == []


def test_a_wait_that_guards_more_than_its_stage_consumes():
    (finding,) = find(run_events(guarded=40), figures())
    assert finding.code == "wait_guards_more"
    assert "40 tickets for 4" in finding.statement


@pytest.mark.parametrize("kinds", [[], ["token"], ["ticket"]])
def test_runs_without_the_events_a_detector_needs_are_silent(kinds):
    assert codes(run_events(wait_ns=9_000_000).filter(pl.col("kind").is_in(kinds))) == []
    assert codes(pl.DataFrame(schema=EVENT_SCHEMA)) == []
