"""Passes that commit several tokens read alike wherever a rate or a figure per token is shown: committed tokens divide."""

import re
from dataclasses import asdict

import pytest

from workbench.analysis.detectors import run_detectors
from workbench.analysis.overlap import decode_measures
from workbench.analysis.run_metrics import run_metrics, token_series
from workbench.analysis.timeline import exposed_waits
from workbench.analysis.token_bound import token_bound
from workbench.analysis.twin_errors import decoded
from workbench.config import Config
from workbench.experiments.simulation import LoadedRoutes
from workbench.experiments.stalls import StallConfig, stall_table
from workbench.experiments.timeline import make_timeline
from workbench.report.page import render
from workbench.report.runs import read_runs
from workbench.report.waterfall import waterfall
from workbench.schema import EventLog, Evidence, RunFolder
from workbench.simulate.events import route_frame
from workbench.simulate.machines import ENDS, twin_tps
from workbench.simulate.planner import PlannedMachine
from workbench.simulate.planted import independent

MS = 1_000_000
S = 1_000 * MS
RECORD, PAGE, UNUSED = 9_000, 300, 1_500
"""Bytes of reads per token: one demanded record, one demanded page, one record that was predicted for nothing."""
EXPECTED = {
    "tps": 3.0,
    "token_ms": 1000 / 3,
    "expert_wait_ms": 100.0,
    "ple_wait_ms": 10.0,
    "wait_ms": 110.0,
    "misses": 1.0,
    "expert_bytes": RECORD + UNUSED,
    "ple_bytes": PAGE,
    "demand_bytes": RECORD + PAGE,
    "wasted_bytes": UNUSED,
}
"""Per token, whatever the passes."""
RUNS = {
    "decode": [("decode", 3)] * 5,
    "verify": [("verify", 3)] * 5,
    "alternating": [("verify", 3), ("decode", 3), ("verify", 3), ("decode", 3), ("verify", 3)],
    "mixed": [("decode", 1), ("verify", 3), ("verify", 8), ("decode", 1), ("verify", 2)],
}


class Plan(Config):
    """Of a planted run."""


def plant(log, run):
    """Passes that take a third of a second per token; in `decode`, five of three tokens that end at 1, 2, 3, 4 and 5 s."""
    log.add(0, "mark", name="request_start", request=0)
    for name in ("gdn", "router", "shared", "gate_up", "down"):
        log.add(0, "stage", name=name, phase="attribution", layer=0, position=0, duration_ns=MS)
    end, position = 0, 0
    for phase, tokens in RUNS[run]:
        start, end = end, end + round(tokens * S / 3)
        where = {"request": 0, "phase": phase, "position": position, "layer": 0}
        log.add(start + 1, "demand", store="expert", hits=9 * tokens, joined=0, misses=tokens, logical_bytes=0, **where)
        log.add(start + 1, "demand", store="ple", hits=0, joined=0, misses=tokens, value=tokens, logical_bytes=0, **where)
        for _ in range(tokens):
            read(log, start, "expert", RECORD, where)
            read(log, start, "ple", PAGE, where)
            read(log, start, "expert", UNUSED, where, intent="predicted", outcome="unused", priority=2)
        log.add(start + 2, "wait", store="expert", duration_ns=100 * MS * tokens, guarded=1, consumed=1, **where)
        log.add(start + 3, "wait", store="ple", duration_ns=10 * MS * tokens, guarded=1, consumed=1, **where)
        position += tokens
        log.add(end, "token", duration_ns=end - start, committed_tokens=tokens, **where | {"layer": None})


def read(log, start, store, num_bytes, where, *, intent="exact", outcome="used_late", priority=0):
    times = {"submit_ns": start + 1, "ready_ns": start + 9 * MS, "seen_ns": start + 9 * MS}
    sizes = {"logical_bytes": num_bytes, "physical_bytes": num_bytes}
    what = {"store": store, "identity": 5, "intent": intent, "outcome": outcome, "priority": priority}
    log.add(start + 1, "ticket", **where, **what, **times, **sizes)


@pytest.fixture(params=RUNS)
def run(request):
    return request.param


@pytest.fixture
def events(run):
    log = EventLog()
    plant(log, run)
    return log.frame()


@pytest.fixture
def folder(run, events, tmp_path):
    """The planted run as a result folder, with what `generate` computes from its events."""
    folder = RunFolder.create(tmp_path, "generate", Plan(), profile="mini", evidence=Evidence.PHYSICAL)
    plant(folder.events, run)
    folder.finish(metrics=run_metrics(events))
    return folder


def metrics_place(events, **_):
    found = run_metrics(events)
    yield {
        "tps": found["e2e/decode_tps"],
        "token_ms": found["e2e/tpot_p50_ms"],
        "misses": found["routing/misses_per_token"],
        "demand_bytes": found["e2e/demand_bytes_per_token"],
        "wasted_bytes": found["e2e/wasted_bytes_per_token"],
    }
    yield {"token_ms": found["e2e/tpot_p95_ms"]}


def series_place(events, **_):
    names = {
        "e2e/tpot_p50_ms": "token_ms",
        "storage/expert_exact_bytes": "expert_bytes",
        "storage/ple_exact_bytes": "ple_bytes",
        "routing/misses_per_token": "misses",
        "overlap/exposed_wait_ms": "expert_wait_ms",
        "ple/exposed_wait_ms": "ple_wait_ms",
    }
    series = token_series(events)
    assert series.keys() == names.keys()
    counted = events.filter(kind="token")["committed_tokens"][1:].sum()
    assert {len(values) for values in series.values()} == {counted}
    for values in zip(*series.values(), strict=True):
        yield dict(zip(names.values(), values, strict=True))


def overlap_place(events, **_):
    found = decode_measures(events)
    yield {name: found[name] for name in EXPECTED if name in found}
    yield {"misses": found["page_misses"]}


def bound_place(events, **_):
    found = token_bound(events.filter(events["kind"] != "wait"), 1e12, 10)
    yield {"tps": found["e2e/bound_tps"], "token_ms": found["e2e/dependency_bound_ms"] / found["e2e/bound_fraction"]}
    # nothing hides behind reads of 9 ns: compute is the bound
    assert found["e2e/bound_fraction"] == pytest.approx(1.0, rel=1e-6)


def detectors_place(events, **_):
    found = {finding.code: finding.statement for finding in run_detectors(events, run_metrics(events))}
    share = float(re.search(r"exposed waits take (\d+)% of token time", found["waiting_behind_hits"]).group(1))
    assert share == 33
    moved, demanded = re.search(r"([\d,]+) bytes a token against ([\d,]+) demanded", found["more_bytes"]).groups()
    yield {"demand_bytes": float(demanded.replace(",", ""))}
    assert float(moved.replace(",", "")) == RECORD + PAGE + UNUSED


def timeline_place(events, folder, **_):
    made = make_timeline(folder, number=2, num_experts=128)
    yield {"token_ms": made.token_ms}
    for waits in (made.waits, made.mean_waits, exposed_waits(events)):
        by_store = dict(waits.select("store", "wait_ms").rows())
        yield {"expert_wait_ms": by_store["expert"], "ple_wait_ms": by_store["ple"], "wait_ms": waits["wait_ms"].sum()}


def waterfall_place(folder, **_):
    [only] = read_runs(folder.path.parent.parent)
    fall = waterfall(only)
    parts = {part.key: part.ms for part in fall.parts}
    yield {"token_ms": fall.token_ms, "expert_wait_ms": parts["expert"], "ple_wait_ms": parts["ple"]}
    yield {"token_ms": sum(parts.values()), "demand_bytes": fall.bytes_per_token - UNUSED}


def report_place(folder, **_):
    page = render(folder.path.parent.parent)
    assert "333.3 ms per token" in page
    yield {"expert_wait_ms": float(re.search(r"exposed expert wait ([\d.]+) ms", page).group(1))}


def twin_place(events, **_):
    found = asdict(decoded(events))
    yield {"token_ms": found["token_ms"], "wait_ms": found["exposed_wait_ms"], "misses": found["misses"]}


def stalls_place(run, monkeypatch, **_):
    monkeypatch.setattr("workbench.experiments.stalls.run_twin", lambda point, routes, log: plant(log, run))
    routes = independent(num_requests=1, num_tokens=2, num_layers=1, num_experts=16, top_k=2, seed=0)
    loaded = LoadedRoutes(frame=route_frame(routes, family="made"), num_layers=1, num_experts=16, profile="slice")
    table = stall_table(loaded, StallConfig(fractions=(0.5,)), record_bytes=1_000_000)
    for row in table.iter_rows(named=True):
        yield {"wait_ms": row["stall_ms_per_token"], "misses": row["read_mb_per_token"]}
        assert row["stall_ms_per_mb"] == pytest.approx(110.0)


def machines_place(run, monkeypatch, **_):
    class Planted:
        def __init__(self, config, stages, envelope, log):
            self.log = log

        def run(self, passes):
            plant(self.log, run)
            return self.log

    monkeypatch.setattr("workbench.simulate.machines.Twin", Planted)
    routes = independent(num_requests=1, num_tokens=2, num_layers=1, num_experts=16, top_k=2, seed=0)[0]
    machine = PlannedMachine(
        name="toy", device="none", budget_gb=12, ssd_gbps=(4.0, 9.0), compute_ms=(20.0, 45.0), num_slots=1000
    )
    yield {"tps": twin_tps(machine, ENDS["middle"], routes)}


PLACES = [
    metrics_place, series_place, overlap_place, bound_place, detectors_place, timeline_place, waterfall_place, report_place,
    twin_place, stalls_place, machines_place,
]  # fmt: skip


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__.removesuffix("_place"))
def test_figures_per_token_and_rates_divide_by_committed_tokens(place, run, events, folder, monkeypatch):
    shown = list(place(events=events, run=run, folder=folder, monkeypatch=monkeypatch))
    assert shown
    for figures in shown:
        assert figures
        assert figures == pytest.approx({name: EXPECTED[name] for name in figures}, rel=1e-6)


def test_tau_is_the_tokens_of_verify_passes_divided_by_their_number(run, events):
    expected = {"decode": None, "verify": 3.0, "alternating": 3.0, "mixed": 13 / 3}[run]
    assert run_metrics(events).get("e2e/tau") == expected


def test_a_median_token_and_each_token_of_a_pass_are_found(folder, run):
    last = sum(tokens for _, tokens in RUNS[run])
    made = make_timeline(folder, number=last, num_experts=128)
    first, count = last - RUNS[run][-1][1] + 1, RUNS[run][-1][1]
    assert (made.token, made.committed_tokens, made.words) == (first, count, f"tokens {first} to {last}")
    assert make_timeline(folder, num_experts=128).token_ms == pytest.approx(1000 / 3)
