"""Metrics of one run from its raw events, so that anybody can compute them again from the result folder."""

import numpy as np
import polars as pl

from workbench.analysis.classes import class_metrics
from workbench.schema.events import PASS_COLUMNS, Events, rows_of
from workbench.schema.generated import Intervals, generated, generated_passes, generated_tokens, paused_ns
from workbench.units import GB, NS_PER_MS, NS_PER_S, NS_PER_US

_TICKET_COLUMNS = (
    "intent", "outcome", "submit_ns", "ready_ns", "seen_ns", "deadline_ns", "logical_bytes", "physical_bytes", "queue_depth",
    "value",
)  # fmt: skip
_OTHER_KINDS = ("token", "demand", "wait", "readback", "evaluate", "wave", "mark", "rejected")
_OTHER_COLUMNS = (
    "t_ns", "kind", "request", "phase", "position", "store", "name", "duration_ns", "logical_bytes", "hits", "joined", "misses",
    "value", "committed_tokens",
)  # fmt: skip
_USED = pl.col("outcome").is_in(["used_on_time", "used_late"])
_SOUND = pl.col("outcome") != "failed"


def run_metrics(events: Events) -> dict[str, float]:
    """Metrics of the registry from the events of a generate or trace run; metrics without data are absent.

    Passes of the attribution run are left out: evaluating after each stage changes timing.
    """
    timed = events.lazy().filter(pl.col("phase").ne_missing("attribution"))
    others = rows_of(timed, _OTHER_KINDS, _OTHER_COLUMNS)
    demands = others.filter(kind="demand")
    metrics: dict[str, float] = {}
    for store in ("expert", "ple"):
        metrics |= _storage(timed.filter(store=store), demands.filter(store=store), store)
    metrics |= class_metrics(timed)
    metrics |= _ple(timed.filter(store="ple"), others.filter(store="ple"))
    metrics |= _waits(timed, others)
    metrics |= _speed(others)
    metrics |= _hits(demands.filter(store="expert"))
    metrics |= _per_token_bytes(timed, others)
    return {name: float(value) for name, value in metrics.items()}


def token_series(events: Events) -> dict[str, list[float]]:
    """Series by metric name, one value per counted token: its equal share of its pass's time, bytes, misses and waits."""
    intervals = Intervals.of(rows_of(events, ("token", "mark"), PASS_COLUMNS))
    if not intervals.num_tokens:
        return {}

    def per_token(kind: str, store: str, column: str, time: str, scale: float) -> list[float]:
        rows = rows_of(events.lazy().filter(store=store), [kind], ("phase", "request", column, time))
        return [float(value) for value in intervals.per_token(generated(rows), column, time) * scale]

    return {
        "e2e/tpot_p50_ms": [float(value) for value in intervals.token_ns() / NS_PER_MS],
        "storage/expert_exact_bytes": per_token("ticket", "expert", "logical_bytes", "ready_ns", 1),
        "storage/ple_exact_bytes": per_token("ticket", "ple", "logical_bytes", "ready_ns", 1),
        "routing/misses_per_token": per_token("demand", "expert", "misses", "t_ns", 1),
        "overlap/exposed_wait_ms": per_token("wait", "expert", "duration_ns", "t_ns", 1 / NS_PER_MS),
        "ple/exposed_wait_ms": per_token("wait", "ple", "duration_ns", "t_ns", 1 / NS_PER_MS),
    }


def union_ns(starts: np.ndarray, ends: np.ndarray) -> int:
    """Nanoseconds covered by at least one of the intervals `[start, end)`."""
    if len(starts) == 0:
        return 0
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    gaps = np.maximum(starts[1:] - ends[:-1], 0)
    return int(ends[-1] - starts[0] - gaps.sum())


def _storage(events: pl.LazyFrame, demands: pl.DataFrame, store: str) -> dict[str, float]:
    tickets = rows_of(events.filter(_SOUND), ["ticket"], _TICKET_COLUMNS)
    if tickets.height == 0:
        return {}
    exact, predicted = (_sum(tickets, "logical_bytes", pl.col("intent") == intent) for intent in ("exact", "predicted"))
    demand = _sum(tickets, "logical_bytes", pl.col("outcome") != "unused")
    wasted = _sum(tickets, "logical_bytes") - demand
    # a cancelled prediction may have moved bytes and has no ready time
    came = tickets.select("submit_ns", "ready_ns", "physical_bytes").drop_nulls("ready_ns")
    latency_us = (came["ready_ns"] - came["submit_ns"]).to_numpy() / NS_PER_US
    busy_ns = union_ns(came["submit_ns"].to_numpy(), came["ready_ns"].to_numpy())
    values = {
        "demand_bytes": demand,
        "exact_bytes": exact,
        "predicted_bytes": predicted,
        "wasted_bytes": wasted,
        "logical_bytes": _sum(demands, "logical_bytes"),
        "physical_bytes": _sum(tickets, "physical_bytes"),
        "queue_depth_mean": tickets["queue_depth"].drop_nulls().to_numpy().mean() if tickets["queue_depth"].count() else None,
        "bandwidth_gbps": _sum(came, "physical_bytes") / GB / (busy_ns / NS_PER_S) if busy_ns else 0.0,
        "overfetch_ratio": (demand + wasted) / demand if demand else 0.0,
    }
    if came.height:
        values |= {f"submit_to_ready_p{p}_us": np.percentile(latency_us, p) for p in (50, 95, 99)}
    values |= _calls(tickets) | _timeliness(tickets)
    return {f"storage/{store}_{name}": value for name, value in values.items() if value is not None}


def _calls(tickets: pl.DataFrame) -> dict[str, float]:
    """Number and size of read calls; a ticket may take one call, a share of one, or several."""
    calls = tickets["value"].fill_null(1.0).to_numpy()
    sizes = tickets["physical_bytes"].to_numpy() / calls
    order = np.argsort(sizes, kind="stable")
    middle = np.searchsorted(np.cumsum(calls[order]), calls.sum() / 2)
    return {
        "read_ops": round(calls.sum()),
        "read_size_p50_bytes": round(sizes[order][middle]),
        "coalesced_runs": round(calls[calls < 1].sum()),
    }


def _timeliness(tickets: pl.DataFrame) -> dict[str, float]:
    """Whether tickets were ready before compute asked, and the delay until the compute thread saw them."""
    values = {}
    seen = tickets.select("outcome", "seen_ns", "ready_ns").drop_nulls("seen_ns")
    asked = tickets.select("deadline_ns", "ready_ns").drop_nulls("deadline_ns")
    if seen.height:
        values["ready_to_seen_p50_us"] = np.median((seen["seen_ns"] - seen["ready_ns"]).to_numpy()) / NS_PER_US
        demanded = seen.filter(_USED)
        if demanded.height:
            values["late_fraction"] = (demanded["outcome"] == "used_late").to_numpy().mean()
    if asked.height:
        values["slack_p50_us"] = _slack_us(asked)
    predicted = tickets.select("intent", "outcome").filter(intent="predicted")
    if predicted.height:
        values["useful_prefetch_ratio"] = (predicted["outcome"] != "unused").to_numpy().mean()
    return values


def _slack_us(tickets: pl.DataFrame) -> float:
    return float(np.median((tickets["deadline_ns"] - tickets["ready_ns"]).to_numpy())) / NS_PER_US


def _sum(frame: pl.DataFrame, column: str, *where: pl.Expr) -> float:
    found = frame.lazy().filter(*where).select(column).collect() if where else frame
    return float(found[column].drop_nulls().to_numpy().sum())


def _ple(timed: pl.LazyFrame, events: pl.DataFrame) -> dict[str, float]:
    demands = events.filter(kind="demand")
    if demands.height == 0:
        return {}
    hits, joined, misses = (_sum(demands, name) for name in ("hits", "joined", "misses"))
    marks = {name: _sum(events.filter(kind="mark", name=name), "value") for name in ("rows_unique", "pages_requested")}
    tickets = rows_of(timed, ["ticket"], ("outcome", "ready_ns", "deadline_ns", "physical_bytes"))
    used = tickets.filter(_USED)
    metrics = {
        "ple/rows_requested": _sum(demands, "value"),
        "ple/pages_unique": hits + joined + misses,
        "ple/page_hits": hits,
        "ple/pages_joined": joined,
        "ple/page_misses": misses,
        "ple/logical_bytes": _sum(demands, "logical_bytes"),
        "ple/physical_bytes": _sum(tickets, "physical_bytes"),
        "ple/exposed_wait_ms": _sum(events.filter(kind="wait"), "duration_ns") / NS_PER_MS,
    }
    metrics |= {f"ple/{name}": value for name, value in marks.items() if value}
    rejected = events.filter(kind="rejected")
    if rejected.height:
        metrics["ple/rejected_suffix_bytes"] = _sum(rejected, "logical_bytes")
    if used["deadline_ns"].count():
        metrics["ple/ready_to_use_slack_p50_us"] = _slack_us(used.filter(pl.col("deadline_ns").is_not_null()))
    return metrics


def _waits(timed: pl.LazyFrame, events: pl.DataFrame) -> dict[str, float]:
    waits, evaluations = events.filter(kind="wait"), events.filter(kind="evaluate")
    # a read that was cancelled after compute had asked for it has no ready time
    used = timed.filter(_USED, pl.col("ready_ns").is_not_null())
    tickets = rows_of(used, ["ticket"], ("submit_ns", "ready_ns"))
    io_wall_ns = union_ns(tickets["submit_ns"].to_numpy(), tickets["ready_ns"].to_numpy())
    waited_ns = _sum(waits, "duration_ns")
    readback_ns = _sum(events.filter(kind="readback"), "duration_ns")
    metrics = {
        "overlap/io_wall_ms": io_wall_ns / NS_PER_MS,
        "overlap/exposed_wait_ms": _sum(waits.filter(store="expert"), "duration_ns") / NS_PER_MS,
        "overlap/compute_idle_for_exact_io_ms": waited_ns / NS_PER_MS,
        "overlap/readback_ms": readback_ns / NS_PER_MS,
    }
    if evaluations.height:
        passes_ns = _sum(events.filter(kind="token"), "duration_ns")
        stood_ns = waited_ns + readback_ns + _sum(evaluations, "duration_ns")
        metrics["overlap/host_ms"] = (passes_ns - stood_ns) / NS_PER_MS
    if io_wall_ns:
        metrics["overlap/hidden_fraction"] = 1 - waited_ns / io_wall_ns
    for name in ("gate_up", "down"):
        waves = events.filter(kind="wave", name=name)
        if waves.height:
            metrics[f"overlap/wave_{name}_ready_ms"] = _sum(waves, "duration_ns") / waves.height / NS_PER_MS
    return metrics


def _speed(events: pl.DataFrame) -> dict[str, float]:
    metrics: dict[str, float] = {}
    prefill = events.filter(kind="token", phase="prefill")
    if prefill.height:
        metrics["e2e/prefill_tps"] = _sum(prefill, "committed_tokens") / (_sum(prefill, "duration_ns") / NS_PER_S)
    starts = events.filter(kind="mark", name="request_start").sort("t_ns")
    if starts.height and prefill.height:
        # the first token is chosen from the logits that the prompt's last pass leaves
        first = prefill.filter(pl.col("request") == starts["request"][0])["t_ns"].max()
        start_ns = starts["t_ns"][0]
        pauses_ns = np.diff(paused_ns(events, np.array([start_ns, first])))[0]
        metrics["e2e/ttft_ms"] = (first - start_ns - pauses_ns) / NS_PER_MS
    intervals = Intervals.of(events)
    if intervals.num_tokens:
        token_ns = intervals.token_ns()
        metrics["e2e/decode_tps"] = intervals.num_tokens / (intervals.time_ns / NS_PER_S)
        metrics["e2e/tpot_p50_ms"] = np.percentile(token_ns, 50) / NS_PER_MS
        metrics["e2e/tpot_p95_ms"] = np.percentile(token_ns, 95) / NS_PER_MS
    verified = generated_passes(events).filter(phase="verify")
    if verified.height:
        metrics["e2e/tau"] = _sum(verified, "committed_tokens") / verified.height
    return metrics


def _hits(demands: pl.DataFrame) -> dict[str, float]:
    metrics = {}
    for name, rows in (("request_hit_rate", demands), ("decode_hit_rate", generated(demands))):
        asked = _sum(rows, "hits") + _sum(rows, "joined") + _sum(rows, "misses")
        if asked:
            metrics[f"routing/{name}"] = _sum(rows, "hits") / asked
    return metrics


def _per_token_bytes(timed: pl.LazyFrame, events: pl.DataFrame) -> dict[str, float]:
    num_tokens = generated_tokens(events)
    if not num_tokens:
        return {}
    tickets = generated(rows_of(timed.filter(_SOUND), ["ticket"], ("phase", "outcome", "logical_bytes")))
    wasted = _sum(tickets.filter(outcome="unused"), "logical_bytes")
    misses = _sum(generated(events).filter(kind="demand", store="expert"), "misses")
    return {
        "e2e/demand_bytes_per_token": (_sum(tickets, "logical_bytes") - wasted) / num_tokens,
        "e2e/wasted_bytes_per_token": wasted / num_tokens,
        "routing/misses_per_token": misses / num_tokens,
    }
