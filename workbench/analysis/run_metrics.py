"""Metrics of one run from its raw events, so that anybody can compute them again from the result folder."""

import numpy as np
import polars as pl

from workbench.analysis.classes import class_metrics
from workbench.schema.generated import Intervals, generated, generated_passes, generated_tokens
from workbench.units import GB, NS_PER_MS, NS_PER_S, NS_PER_US


def run_metrics(events: pl.DataFrame) -> dict[str, float]:
    """Metrics of the registry from the events of a generate or trace run; metrics without data are absent.

    Passes of the attribution run are left out: evaluating after each stage changes timing.
    """
    events = events.filter(pl.col("phase").ne_missing("attribution"))
    metrics: dict[str, float] = {}
    for store in ("expert", "ple"):
        metrics |= _storage(events.filter(store=store), store)
    metrics |= class_metrics(events)
    metrics |= _ple(events.filter(store="ple"))
    metrics |= _waits(events)
    metrics |= _speed(events)
    metrics |= _hits(events.filter(store="expert", kind="demand"))
    metrics |= _per_token_bytes(events)
    return {name: float(value) for name, value in metrics.items()}


def token_series(events: pl.DataFrame) -> dict[str, list[float]]:
    """Series by metric name, one value per counted token: its equal share of its pass's time, bytes, misses and waits."""
    intervals = Intervals.of(events)
    if not intervals.num_tokens:
        return {}

    def per_token(rows: pl.DataFrame, column: str, time: str, scale: float) -> list[float]:
        return [float(value) for value in intervals.per_token(rows, column, time) * scale]

    rows = generated(events)
    reads, waits = rows.filter(kind="ticket"), rows.filter(kind="wait")
    return {
        "e2e/tpot_p50_ms": [float(value) for value in intervals.token_ns() / NS_PER_MS],
        "storage/expert_exact_bytes": per_token(reads.filter(store="expert"), "logical_bytes", "ready_ns", 1),
        "storage/ple_exact_bytes": per_token(reads.filter(store="ple"), "logical_bytes", "ready_ns", 1),
        "routing/misses_per_token": per_token(rows.filter(kind="demand", store="expert"), "misses", "t_ns", 1),
        "overlap/exposed_wait_ms": per_token(waits.filter(store="expert"), "duration_ns", "t_ns", 1 / NS_PER_MS),
        "ple/exposed_wait_ms": per_token(waits.filter(store="ple"), "duration_ns", "t_ns", 1 / NS_PER_MS),
    }


def union_ns(starts: np.ndarray, ends: np.ndarray) -> int:
    """Nanoseconds covered by at least one of the intervals `[start, end)`."""
    if len(starts) == 0:
        return 0
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    gaps = np.maximum(starts[1:] - ends[:-1], 0)
    return int(ends[-1] - starts[0] - gaps.sum())


def _storage(events: pl.DataFrame, store: str) -> dict[str, float]:
    tickets = events.filter((pl.col("kind") == "ticket") & (pl.col("outcome") != "failed"))
    if tickets.height == 0:
        return {}
    used = tickets.filter(pl.col("outcome") != "unused")
    exact, predicted = (_sum(tickets.filter(intent=intent), "logical_bytes") for intent in ("exact", "predicted"))
    demand, wasted = _sum(used, "logical_bytes"), _sum(tickets, "logical_bytes") - _sum(used, "logical_bytes")
    # a cancelled prediction may have moved bytes and has no ready time
    came = tickets.drop_nulls("ready_ns")
    latency_us = (came["ready_ns"] - came["submit_ns"]).to_numpy() / NS_PER_US
    busy_ns = union_ns(came["submit_ns"].to_numpy(), came["ready_ns"].to_numpy())
    values = {
        "demand_bytes": demand,
        "exact_bytes": exact,
        "predicted_bytes": predicted,
        "wasted_bytes": wasted,
        "logical_bytes": _sum(events.filter(kind="demand"), "logical_bytes"),
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
    seen, asked = (tickets.filter(pl.col(column).is_not_null()) for column in ("seen_ns", "deadline_ns"))
    if seen.height:
        values["ready_to_seen_p50_us"] = np.median((seen["seen_ns"] - seen["ready_ns"]).to_numpy()) / NS_PER_US
        demanded = seen.filter(pl.col("outcome").is_in(["used_on_time", "used_late"]))
        if demanded.height:
            values["late_fraction"] = (demanded["outcome"] == "used_late").to_numpy().mean()
    if asked.height:
        values["slack_p50_us"] = _slack_us(asked)
    predicted = tickets.filter(intent="predicted")
    if predicted.height:
        values["useful_prefetch_ratio"] = (predicted["outcome"] != "unused").to_numpy().mean()
    return values


def _slack_us(tickets: pl.DataFrame) -> float:
    return float(np.median((tickets["deadline_ns"] - tickets["ready_ns"]).to_numpy())) / NS_PER_US


def _sum(frame: pl.DataFrame, column: str) -> float:
    return float(frame[column].drop_nulls().to_numpy().sum())


def _ple(events: pl.DataFrame) -> dict[str, float]:
    demands = events.filter(kind="demand")
    if demands.height == 0:
        return {}
    hits, joined, misses = (_sum(demands, name) for name in ("hits", "joined", "misses"))
    marks = {name: _sum(events.filter(kind="mark", name=name), "value") for name in ("rows_unique", "pages_requested")}
    used = events.filter(pl.col("kind") == "ticket", pl.col("outcome").is_in(["used_on_time", "used_late"]))
    metrics = {
        "ple/rows_requested": _sum(demands, "value"),
        "ple/pages_unique": hits + joined + misses,
        "ple/page_hits": hits,
        "ple/pages_joined": joined,
        "ple/page_misses": misses,
        "ple/logical_bytes": _sum(demands, "logical_bytes"),
        "ple/physical_bytes": _sum(events.filter(kind="ticket"), "physical_bytes"),
        "ple/exposed_wait_ms": _sum(events.filter(kind="wait"), "duration_ns") / NS_PER_MS,
    }
    metrics |= {f"ple/{name}": value for name, value in marks.items() if value}
    rejected = events.filter(kind="rejected")
    if rejected.height:
        metrics["ple/rejected_suffix_bytes"] = _sum(rejected, "logical_bytes")
    if used["deadline_ns"].count():
        metrics["ple/ready_to_use_slack_p50_us"] = _slack_us(used.filter(pl.col("deadline_ns").is_not_null()))
    return metrics


def _waits(events: pl.DataFrame) -> dict[str, float]:
    waits, evaluations = events.filter(kind="wait"), events.filter(kind="evaluate")
    used = pl.col("outcome").is_in(["used_on_time", "used_late"])
    # a read that was cancelled after compute had asked for it has no ready time
    tickets = events.filter(pl.col("kind") == "ticket", used, pl.col("ready_ns").is_not_null())
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
        metrics["e2e/ttft_ms"] = (first - starts["t_ns"][0]) / NS_PER_MS
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


def _per_token_bytes(events: pl.DataFrame) -> dict[str, float]:
    num_tokens = generated_tokens(events)
    if not num_tokens:
        return {}
    rows = generated(events)
    tickets = rows.filter((pl.col("kind") == "ticket") & (pl.col("outcome") != "failed"))
    wasted = _sum(tickets.filter(outcome="unused"), "logical_bytes")
    misses = _sum(rows.filter(kind="demand", store="expert"), "misses")
    return {
        "e2e/demand_bytes_per_token": (_sum(tickets, "logical_bytes") - wasted) / num_tokens,
        "e2e/wasted_bytes_per_token": wasted / num_tokens,
        "routing/misses_per_token": misses / num_tokens,
    }
