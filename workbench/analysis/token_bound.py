"""A decoded token against its bounds: stage times of the attribution run, bytes of the timed run, bandwidth from elsewhere."""

import numpy as np
import polars as pl

from workbench.bounds import LayerCost, dependency_bound_ns
from workbench.units import NS_PER_MS, NS_PER_S

_PRE_ROUTER = ("ple", "gdn", "qsa", "router")
_ROUTED = ("gate_up", "down")
_STAGES = (*_PRE_ROUTER, "shared", *_ROUTED, "head")


def token_bound(events: pl.DataFrame, bandwidth_bytes_per_s: float, top_k: int) -> dict[str, float]:
    """Stage times a token, and the timed run's token against `max(compute, bytes / bandwidth)` and the dependency bound.

    The attribution run's stages take longer than the timed run's, which overlap dispatch; they are scaled so that their sum is
    the timed run's token time without its exposed waits. Empty when a run has no attribution or fewer than two tokens.
    """
    tokens = events.filter(kind="token", phase="decode").sort("t_ns")
    stages = events.filter(kind="stage")
    if tokens.height < 2 or stages.height == 0:
        return {}
    per_layer = _stage_ns_by_layer(stages)
    token_ns = float(np.diff(tokens["t_ns"].to_numpy()).mean())
    waits_ns = int(events.filter(kind="wait", phase="decode")["duration_ns"].sum()) / tokens.height
    compute_ns = max(token_ns - waits_ns, 0.0)
    attributed_ns = sum(sum(stage_ns.values()) for stage_ns in per_layer.values())
    scale = compute_ns / attributed_ns
    reads = _read_ns(events, bandwidth_bytes_per_s, tokens.height)
    bound_ns = _bound(per_layer, reads, scale, top_k)
    read_ns = sum(all_ns for all_ns, _ in reads.values())
    metrics = {f"overlap/stage_{name}_ms": _total(per_layer, name) / NS_PER_MS for name in _STAGES if _total(per_layer, name)}
    return metrics | {
        "overlap/attribution_ratio": attributed_ns / compute_ns if compute_ns else 0.0,
        "e2e/bound_tps": NS_PER_S / max(compute_ns, read_ns) if max(compute_ns, read_ns) else 0.0,
        "e2e/dependency_bound_ms": bound_ns / NS_PER_MS,
        "e2e/bound_fraction": bound_ns / token_ns,
    }


def _stage_ns_by_layer(stages: pl.DataFrame) -> dict[int, dict[str, float]]:
    """Mean nanoseconds a token by layer (-1: outside the layers) and stage."""
    num_tokens = stages["position"].n_unique()
    sums = stages.group_by("layer", "name").agg(pl.col("duration_ns").sum())
    result: dict[int, dict[str, float]] = {}
    for layer, name, total_ns in sums.iter_rows():
        result.setdefault(layer, {})[name] = total_ns / num_tokens
    return result


def _read_ns(events: pl.DataFrame, bandwidth_bytes_per_s: float, num_tokens: int) -> dict[int, tuple[float, float]]:
    """By layer, mean nanoseconds a token of all expert reads and of the first one, at the given bandwidth."""
    tickets = events.filter(kind="ticket", phase="decode", store="expert")
    demands = events.filter(kind="demand", phase="decode", store="expert")
    if tickets.height == 0:
        return {}
    one_ns = float(tickets["physical_bytes"].to_numpy().mean()) / bandwidth_bytes_per_s * NS_PER_S
    by_layer = demands.group_by("layer").agg(pl.col("misses").sum(), (pl.col("misses") > 0).sum().alias("with_misses"))
    return {layer: (one_ns * n / num_tokens, one_ns * some / num_tokens) for layer, n, some in by_layer.iter_rows()}


def _bound(per_layer: dict[int, dict[str, float]], reads: dict[int, tuple[float, float]], scale: float, top_k: int) -> float:
    costs = []
    for layer, stage_ns in per_layer.items():
        if layer < 0:
            continue
        all_ns, first_ns = reads.get(layer, (0.0, 0.0))
        experts_ns = scale * sum(stage_ns.get(name, 0.0) for name in _ROUTED)
        costs.append(
            LayerCost(
                pre_router_ns=scale * sum(stage_ns.get(name, 0.0) for name in _PRE_ROUTER),
                first_read_ns=first_ns,
                all_reads_ns=all_ns,
                shared_ns=scale * stage_ns.get("shared", 0.0),
                experts_ns=experts_ns,
                last_expert_ns=experts_ns / top_k,
            )
        )
    return dependency_bound_ns(costs, fixed_ns=scale * sum(per_layer.get(-1, {}).values()))


def _total(per_layer: dict[int, dict[str, float]], name: str) -> float:
    return sum(stage_ns.get(name, 0.0) for stage_ns in per_layer.values())
