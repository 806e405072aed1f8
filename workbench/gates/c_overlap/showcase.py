"""One run a disk as the runtime decodes by default: beside its bounds, the first one in detail."""

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workbench.analysis.overlap import decode_measures
from workbench.experiments.generate import GenerateConfig, run_generate
from workbench.experiments.timeline import TIMELINE_NAME, make_timeline
from workbench.gates.c_overlap.config import OverlapConfig
from workbench.gates.c_overlap.plan import base_plan, disk_words
from workbench.gates.traces import profile_geometry
from workbench.schema import Result, RunFolder, read_events

_METRICS = (
    "e2e/decode_tps", "e2e/bound_tps", "e2e/tpot_p50_ms", "e2e/dependency_bound_ms", "e2e/bound_fraction",
    "overlap/exposed_wait_ms", "ple/exposed_wait_ms", "overlap/hidden_fraction", "e2e/demand_bytes_per_token",
    "e2e/wasted_bytes_per_token",
)  # fmt: skip
_MOST_OVERDUE = 0.05


@dataclass(frozen=True, kw_only=True)
class Showcase:
    """What the runs show."""

    bounds: list[dict[str, Any]]
    """One row a disk."""
    metrics: Mapping[str, float]
    """Of the first run."""
    waits: list[dict[str, Any]]
    """Exposed waits a token of the first run, by layer and class."""
    conditions: list[str]
    """Where this machine's disk is too slow for the one that it stands for."""


def run_showcase(config: OverlapConfig, folder: RunFolder) -> Showcase:
    """Runs each disk; of the first, writes `artifacts/timeline.json` and `artifacts/figures/timeline.png`."""
    runs = []
    for disk in config.disks:
        print(f"gate C: a run beside its bounds on {disk_words(disk)}", file=sys.stderr, flush=True)
        runs.append(run_generate(GenerateConfig.build(base_plan(config, disk)), root=folder.path.parent.parent).folder)
    results = [_result(run) for run in runs]
    num_experts = profile_geometry(config.profile).num_experts
    made = make_timeline(runs[0], folder.artifacts / TIMELINE_NAME, num_experts=num_experts)
    shutil.move(made.figure, folder.artifacts / "figures" / made.figure.name)
    return Showcase(
        bounds=[_row(disk, run) for disk, run in zip(config.disks, runs, strict=True)],
        metrics={name: results[0].metrics[name] for name in _METRICS if name in results[0].metrics},
        waits=made.mean_waits.to_dicts(),
        conditions=[line for disk, result in zip(config.disks, results, strict=True) if (line := too_slow(disk, result.tags))],
    )


def _result(run: RunFolder) -> Result:
    result = run.result
    assert result is not None
    return result


def too_slow(disk: str, tags: Mapping[str, str]) -> str:
    """What is wrong with the emulation of a disk, by the tags of a run; empty: nothing."""
    overdue = float(tags.get("overdue_share", 0))
    if overdue <= _MOST_OVERDUE:
        return ""
    return f"{disk_words(disk)} is emulated too slowly: {overdue:.0%} of its reads took longer here than there"


def _row(disk: str, run: RunFolder) -> dict[str, Any]:
    result, decoded = _result(run), decode_measures(read_events(run.path / "events.parquet"))
    metrics = result.metrics
    return {
        "disk": disk_words(disk),
        "token_ms": decoded["token_ms"],
        "dependency_bound_ms": metrics.get("e2e/dependency_bound_ms"),
        "bound_fraction": metrics.get("e2e/bound_fraction"),
        "tokens_per_s": metrics.get("e2e/decode_tps"),
        "at max(compute, bytes / bandwidth)": metrics.get("e2e/bound_tps"),
        "record_wait_ms": decoded["expert_wait_ms"],
        "page_wait_ms": decoded["ple_wait_ms"],
        "demand_bytes": decoded["demand_bytes"],
        "wasted_bytes": decoded["wasted_bytes"],
        "overdue_share": result.tags.get("overdue_share"),
        "bandwidth": result.tags.get("bandwidth_source"),
    }
