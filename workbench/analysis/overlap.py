"""Measures of overlap, from a run's events: time of a generated token, its exposed waits, its bytes and the read rate."""

import math
from typing import Any

import polars as pl

from workbench.analysis.run_metrics import union_ns
from workbench.schema.generated import Intervals
from workbench.units import GB, NS_PER_MS, NS_PER_S

DECODE_SCHEMA: dict[str, Any] = {
    # mean time per token of the counted intervals
    "token_ms": pl.Float64,
    # part of the token time in which compute was blocked on records, and on n-gram pages
    "expert_wait_ms": pl.Float64,
    "ple_wait_ms": pl.Float64,
    # time per token with at least one demanded record in flight
    "io_ms": pl.Float64,
    "readback_ms": pl.Float64,
    # bytes moved by demanded reads of records, padding included / time with at least one of these reads in flight
    "read_gbps": pl.Float64,
    # demanded and wasted bytes, records and pages, per token
    "demand_bytes": pl.Float64,
    "wasted_bytes": pl.Float64,
    "misses": pl.Float64,
    "page_misses": pl.Float64,
}
"""Measures of one run, each per token except `read_gbps`; NaN without counted tokens, and without reads for the rate."""


def decode_measures(events: pl.DataFrame) -> dict[str, float]:
    """The measures of `DECODE_SCHEMA` in the intervals that decode rates count, per token committed in these intervals."""
    intervals = Intervals.of(events)
    count, time_ns = intervals.num_tokens, intervals.time_ns
    if not count:
        return dict.fromkeys(DECODE_SCHEMA, math.nan)
    inside = intervals.inside(events)
    waits = inside.filter(kind="wait")
    tickets = inside.filter((pl.col("kind") == "ticket") & (pl.col("outcome") != "failed")).drop_nulls("ready_ns")
    demands = inside.filter(kind="demand")
    read = tickets.filter(pl.col("store") == "expert", pl.col("outcome") != "unused")
    io_ns = union_ns(read["submit_ns"].to_numpy(), read["ready_ns"].to_numpy())

    def total(rows: pl.DataFrame, column: str) -> float:
        return float(rows[column].drop_nulls().to_numpy().sum()) / count

    def waited_ms(store: str) -> float:
        return total(waits.filter(store=store), "duration_ns") / NS_PER_MS

    wasted = total(tickets.filter(outcome="unused"), "logical_bytes")
    return {
        "token_ms": time_ns / NS_PER_MS / count,
        "expert_wait_ms": waited_ms("expert"),
        "ple_wait_ms": waited_ms("ple"),
        "io_ms": io_ns / NS_PER_MS / count,
        "readback_ms": total(inside.filter(kind="readback"), "duration_ns") / NS_PER_MS,
        "read_gbps": total(read, "physical_bytes") * count / GB / (io_ns / NS_PER_S) if io_ns else math.nan,
        "demand_bytes": total(tickets, "logical_bytes") - wasted,
        "wasted_bytes": wasted,
        "misses": total(demands.filter(store="expert"), "misses"),
        "page_misses": total(demands.filter(store="ple"), "misses"),
    }
