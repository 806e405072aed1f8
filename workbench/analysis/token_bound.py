"""Bounds of a generated token's time, from stages of the attribution run, bytes of the timed run and a given bandwidth."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from workbench.bounds import LayerCost, dependency_bound_ns
from workbench.schema.events import PASS_COLUMNS, Events, rows_of
from workbench.schema.generated import Intervals
from workbench.units import NS_PER_MS, NS_PER_S

_PRE_ROUTER = ("ple", "gdn", "qsa", "router")
_ROUTED = ("gate_up", "down")
_STAGES = (*_PRE_ROUTER, "shared", *_ROUTED, "head")

StageTimes = Mapping[int, Mapping[str, float]]
"""Nanoseconds by layer (-1: outside the layers) and stage."""


def token_bound(events: Events, bandwidth_bytes_per_s: float, top_k: int) -> dict[str, float]:
    """Stage times per token, and the timed run's token against `max(compute, bytes / bandwidth)` and the dependency bound.

    The attribution run's stages take longer than the timed run's, which overlap dispatch; they are scaled so that their sum is
    the timed run's token time without its exposed waits. The dependency bound is that of each layer of each pass with the records
    that the pass missed, divided by committed tokens; the compute of a pass is that of as many tokens as the pass committed.
    Empty when a run has no attribution or no interval between passes.
    """
    intervals = Intervals.of(rows_of(events, ("token", "mark"), PASS_COLUMNS))
    stages = rows_of(events, ["stage"], ("position", "layer", "name", "duration_ns"))
    count = intervals.num_tokens
    if not count or stages.height == 0:
        return {}
    own = ("t_ns", "request", "phase")
    waits = intervals.inside(rows_of(events, ["wait"], (*own, "duration_ns")))
    demands = rows_of(events.lazy().filter(store="expert"), ["demand"], (*own, "layer", "hits", "joined", "misses"))
    demands = intervals.inside(demands)
    tickets = rows_of(events.lazy().filter(store="expert", intent="exact"), ["ticket"], (*own, "value", "physical_bytes"))
    per_layer = _stage_ns_by_layer(stages)
    token_ns = intervals.time_ns / count
    compute_ns = max(token_ns - int(waits["duration_ns"].sum()) / count, 0.0)
    attributed_ns = sum(sum(stage_ns.values()) for stage_ns in per_layer.values())
    scaled = _scaled(per_layer, compute_ns / attributed_ns)
    reads = _Reads.of(intervals.inside(tickets), bandwidth_bytes_per_s)
    read_ns = reads.whole_ns * float(demands["misses"].to_numpy().sum()) / count
    costs = _costs(scaled, demands, intervals.committed(demands), reads, top_k)
    bound_ns = dependency_bound_ns(list(costs)) / count + sum(scaled.get(-1, {}).values())
    metrics = {f"overlap/stage_{name}_ms": _total(per_layer, name) / NS_PER_MS for name in _STAGES if _total(per_layer, name)}
    return metrics | {
        "overlap/attribution_ratio": attributed_ns / compute_ns if compute_ns else 0.0,
        "e2e/bound_tps": NS_PER_S / max(compute_ns, read_ns) if max(compute_ns, read_ns) else 0.0,
        "e2e/dependency_bound_ms": bound_ns / NS_PER_MS,
        "e2e/bound_fraction": bound_ns / token_ns,
    }


def _stage_ns_by_layer(stages: pl.DataFrame) -> dict[int, dict[str, float]]:
    """Mean nanoseconds per token, by layer and stage."""
    num_tokens = stages["position"].n_unique()
    # sums of floats depend on their order
    sums = stages.group_by("layer", "name", maintain_order=True).agg(pl.col("duration_ns").sum())
    result: dict[int, dict[str, float]] = {}
    for layer, name, total_ns in sums.iter_rows():
        result.setdefault(layer, {})[name] = total_ns / num_tokens
    return result


def _scaled(per_layer: StageTimes, factor: float) -> dict[int, dict[str, float]]:
    return {layer: {name: factor * time_ns for name, time_ns in stage_ns.items()} for layer, stage_ns in per_layer.items()}


@dataclass(frozen=True, kw_only=True)
class _Reads:
    """Time of one record's read at the given bandwidth, nanoseconds."""

    whole_ns: float
    split: bool
    """True when gate+up and down are read separately, so that gate and up can run before down is ready."""

    @classmethod
    def of(cls, tickets: pl.DataFrame, bandwidth_bytes_per_s: float) -> "_Reads":
        if tickets.height == 0:
            return cls(whole_ns=0.0, split=False)
        calls = tickets["value"].fill_null(1.0).to_numpy()
        whole_ns = float(tickets["physical_bytes"].to_numpy().mean()) / bandwidth_bytes_per_s * NS_PER_S
        return cls(whole_ns=whole_ns, split=bool(np.median(calls) >= 2))

    @property
    def first_ns(self) -> float:
        """Nanoseconds until the first products can run: gate+up is two thirds of a record."""
        return self.whole_ns * 2 / 3 if self.split else self.whole_ns


def _costs(scaled: StageTimes, demands: pl.DataFrame, committed: np.ndarray, reads: _Reads, top_k: int) -> Iterator[LayerCost]:
    """One cost per demand (a layer of a pass), from its hits and misses; `committed` `[demands]` is the tokens of its pass."""
    counts = demands.select("layer", "hits", "joined", "misses").iter_rows()
    for (layer, hits, joined, misses), num_tokens in zip(counts, committed.tolist(), strict=True):
        stage_ns = {name: num_tokens * time_ns for name, time_ns in scaled.get(layer, {}).items()}
        routed_ns = sum(stage_ns.get(name, 0.0) for name in _ROUTED)
        yield LayerCost(
            pre_router_ns=sum(stage_ns.get(name, 0.0) for name in _PRE_ROUTER),
            first_read_ns=reads.first_ns if misses else 0.0,
            all_reads_ns=reads.whole_ns * misses,
            shared_ns=stage_ns.get("shared", 0.0),
            hits_ns=routed_ns * hits / (hits + joined + misses),
            experts_ns=routed_ns,
            last_expert_ns=(stage_ns.get("down", 0.0) if reads.split else routed_ns) / top_k,
        )


def _total(per_layer: StageTimes, name: str) -> float:
    return sum(stage_ns.get(name, 0.0) for stage_ns in per_layer.values())
