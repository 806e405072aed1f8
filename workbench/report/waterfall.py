"""Parts of a generated token's time, beside the bound. Waits are the timed run's, stages its attribution run's."""

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from workbench.errors import BadInput
from workbench.report.runs import Run
from workbench.schema import read_events
from workbench.schema.generated import Intervals
from workbench.units import NS_PER_MS

_BEFORE = ("ple", "gdn", "qsa", "router")
_BEHIND = ("shared", "gate_up", "down", "head")


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part of a token's time."""

    key: str
    """Key of its colour."""
    name: str
    """Label for people."""
    ms: float
    """Milliseconds per token."""


@dataclass(frozen=True, kw_only=True)
class Waterfall:
    """One run's token."""

    run: Run
    token_ms: float
    """Mean time per token, the inverse of `e2e/decode_tps`."""
    parts: tuple[Part, ...]
    """Parts, which add up to the token's time."""
    readback_ms: float
    """Time the host waited for router ids; it lies within the compute before the router."""
    bound_ms: float | None
    """The dependency bound; None without an attribution run."""
    bytes_per_token: float
    """Demand plus wasted bytes per token."""


def waterfall(run: Run) -> Waterfall | None:
    """The waterfall of a run that has a decode rate and readable events, else None."""
    if run.result is None or "e2e/decode_tps" not in run.result.metrics:
        return None
    try:
        events = read_events(run.folder.path / "events.parquet")
        intervals = Intervals.of(events)
    except (BadInput, OSError, pl.exceptions.PolarsError):
        return None
    if not intervals.num_tokens:
        return None
    token_ms = 1000 / run.result.metrics["e2e/decode_tps"]
    inside = intervals.inside(events)
    waits = inside.filter(kind="wait")
    expert_ms, ple_ms = (_per_token_ms(waits.filter(store=store), intervals) for store in ("expert", "ple"))
    predictor_ms = _per_token_ms(inside.filter(kind="stage", name="predictor"), intervals)
    compute = _compute(run.result.metrics, max(token_ms - expert_ms - ple_ms - predictor_ms, 0.0))
    metrics = run.result.metrics
    return Waterfall(
        run=run,
        token_ms=token_ms,
        parts=(
            *compute,
            Part(key="predictor", name="predictor", ms=predictor_ms),
            Part(key="expert", name="exposed expert wait", ms=expert_ms),
            Part(key="ple", name="exposed PLE wait", ms=ple_ms),
        ),
        readback_ms=_per_token_ms(inside.filter(kind="readback"), intervals),
        bound_ms=metrics.get("e2e/dependency_bound_ms"),
        bytes_per_token=metrics.get("e2e/demand_bytes_per_token", 0.0) + metrics.get("e2e/wasted_bytes_per_token", 0.0),
    )


def _per_token_ms(inside: pl.DataFrame, intervals: Intervals) -> float:
    """Durations of events that lie in the intervals that `decode_tps` counts, per token committed in them."""
    return float(inside["duration_ns"].fill_null(0).sum()) / NS_PER_MS / intervals.num_tokens


def _compute(metrics: Mapping[str, float], compute_ms: float) -> tuple[Part, ...]:
    """Compute by stage. An evaluation after each stage takes longer, so stages are scaled to fit; what is left is the host."""
    before, behind = (sum(metrics.get(f"overlap/stage_{name}_ms", 0.0) for name in names) for names in (_BEFORE, _BEHIND))
    if not before + behind:
        return (Part(key="host", name="compute, read-back and host (no attribution run)", ms=compute_ms),)
    scale = min(1.0, compute_ms / (before + behind))
    return (
        Part(key="before", name="compute before the router", ms=scale * before),
        Part(key="behind", name="experts and head", ms=scale * behind),
        Part(key="host", name="host", ms=max(compute_ms - scale * (before + behind), 0.0)),
    )
