"""Stage times for the twin, from runs of their own. Nothing of the run that is to be imitated goes in.

A run with everything cached, its prompt decoded once before, gives what a token takes without reads, and an attribution of it
the shares of the stages. What a read costs the computing thread comes from a run with the smallest cache: the time per read
with which the twin of that run waits as long, and takes as long, as the run itself.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from workbench.analysis.twin_errors import Decoded, decoded
from workbench.experiments.generate import GenerateConfig, run_generate
from workbench.experiments.live_twin import twin_inputs
from workbench.experiments.trace import TraceConfig, choose_prompts, record_trace
from workbench.paths import store_folder
from workbench.runtime.config import RuntimeConfig
from workbench.runtime.engine import cache_limits
from workbench.schema import RunFolder, read_events
from workbench.schema.envelopes import Envelope
from workbench.simulate.stages import StageTimes
from workbench.stores import open_store
from workbench.units import NS_PER_MS, NS_PER_US

_US_PER_MS = NS_PER_MS / NS_PER_US
_MOST_TAKE_US = 2000.0
_HALVINGS = 14
_ROUNDS = 2


@dataclass(frozen=True, kw_only=True)
class TimingPlan:
    """What is run to time the stages."""

    recording: TraceConfig
    """The run with the smallest cache; its first prompt is decoded for the attribution as well."""
    attribution_tokens: int
    """Tokens whose stages are timed one by one."""


def time_stages(plan: TimingPlan, envelope: Envelope, root: Path) -> StageTimes:
    """Runs what the plan says, in `root`, on a disk like `envelope`."""
    stages = _compute_times(plan, envelope, root)
    store = store_folder(plan.recording.profile)
    least, _ = cache_limits(open_store(store))
    runtime = plan.recording.runtime.model_copy(update={"cache_bytes": least.num_bytes})
    live = record_trace(plan.recording.model_copy(update={"runtime": runtime}), root=root)
    inputs = twin_inputs(live, runtime, store)
    return fit_host_times(stages, lambda made: decoded(inputs.replay(made, envelope)), decoded(_events(live)))


def _compute_times(plan: TimingPlan, envelope: Envelope, root: Path) -> StageTimes:
    recording = plan.recording
    config = GenerateConfig(
        profile=recording.profile,
        turns=(choose_prompts(recording)[0].text,),
        max_tokens=recording.tokens,
        stop_at_eos=False,
        warm_up_tokens=recording.tokens,
        attribution_tokens=plan.attribution_tokens,
        bandwidth_gbps=envelope.bandwidth_gbps,
        runtime=RuntimeConfig(wave=recording.runtime.wave, uncached=False),
    )
    folder = run_generate(config, root=root).folder
    events = _events(folder)
    plain = decoded(events)
    stages = StageTimes.from_attribution(events, f"stage timing {folder.path.name}")
    return stages.scaled((plain.token_ms - plain.exposed_wait_ms) * NS_PER_MS)


def fit_host_times(stages: StageTimes, replay: Callable[[StageTimes], Decoded], live: Decoded) -> StageTimes:
    """The stage times with the host's time per read at which `replay` waits and takes as long as `live`."""
    for _ in range(_ROUNDS):
        stages = stages.model_copy(update={"take_us": _take_us(stages, replay, live.exposed_wait_ms)})
        short_ms = live.token_ms - replay(stages).token_ms
        ask_us = stages.ask_us + short_ms * _US_PER_MS / max(live.misses, 1.0)
        stages = stages.model_copy(update={"ask_us": max(0.0, ask_us)})
    return stages


def _take_us(stages: StageTimes, replay: Callable[[StageTimes], Decoded], exposed_wait_ms: float) -> float:
    """By bisection: waits grow with the time that each read takes."""
    low, high = 0.0, _MOST_TAKE_US
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        waits_longer = replay(stages.model_copy(update={"take_us": middle})).exposed_wait_ms > exposed_wait_ms
        low, high = (low, middle) if waits_longer else (middle, high)
    return low


def _events(folder: RunFolder) -> pl.DataFrame:
    return read_events(folder.path / "events.parquet")
