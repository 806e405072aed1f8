"""One decode run on each disk at the gate's settings, beside its bounds; the first one with a timeline."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from workbench.analysis.overlap import decode_measures
from workbench.experiments.generate import GenerateConfig, run_generate
from workbench.experiments.timeline import TIMELINE_NAME, make_timeline
from workbench.gates.shared.comparisons import base_plan
from workbench.gates.shared.config import ComparisonConfig, disk_words
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
    """Tables and metrics of the shown runs."""

    bounds: list[dict[str, Any]]
    """One row per disk: times, waits, bytes and bounds of its run."""
    metrics: Mapping[str, float]
    """Metrics of the first run."""
    waits: list[dict[str, Any]]
    """Exposed waits per token of the first run, by layer and class."""
    conditions: list[str]
    """Emulated disks that are faster than this machine's disk."""


def run_showcase(config: ComparisonConfig, folder: RunFolder, note: Callable[[str], None]) -> Showcase:
    """Runs `generate` once on each disk; of the first, writes `artifacts/timeline.json` and `artifacts/figures/timeline.png`.

    `note` gets one line before each run.
    """
    runs = []
    for disk in config.disks:
        note(f"a run beside its bounds on {disk_words(disk)}")
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
    """A condition where a run's tags say that the disk is emulated too slowly; else an empty string."""
    overdue = float(tags.get("overdue_share", 0))
    if overdue <= _MOST_OVERDUE:
        return ""
    return f"{disk_words(disk)} is emulated too slowly: {overdue:.0%} of its reads took longer here than on that disk"


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
