"""Stage times for the twin, from runs of their own. Nothing of the run that is to be imitated goes in.

A run with everything cached, which does all that a trace run does, gives what a token takes without reads, and an attribution
of it the shares of the stages. What a read costs the computing thread comes from a trace run with the smallest cache: the time
per read with which the twin of that run waits as long, and takes as long, as the run itself.
"""

from collections.abc import Callable
from pathlib import Path

from pydantic import Field

from workbench.analysis.twin_errors import Decoded, decoded
from workbench.config import Config
from workbench.experiments.attribution import attribute
from workbench.experiments.generate import encode, load_tokenizer
from workbench.experiments.live_twin import twin_inputs
from workbench.experiments.trace import RouteRecorder, TraceConfig, choose_prompts, record_trace
from workbench.paths import store_folder
from workbench.runtime.engine import StreamedEngine, cache_limits
from workbench.runtime.sampling import Sampler, SamplingConfig
from workbench.runtime.session import Session, generate
from workbench.schema import Evidence, RunFolder, read_events
from workbench.schema.envelopes import Envelope
from workbench.simulate.stages import StageTimes
from workbench.stores import open_store
from workbench.units import NS_PER_MS, NS_PER_US

_US_PER_MS = NS_PER_MS / NS_PER_US
_MOST_TAKE_US = 2000.0
_HALVINGS = 14
_ROUNDS = 3


class TimingPlan(Config):
    """What is run to time the stages."""

    recording: TraceConfig
    """The run with the smallest cache; its first prompt is decoded for the attribution as well."""
    attribution_tokens: int = Field(16, ge=1)
    """Tokens whose stages are timed one by one."""


def time_stages(plan: TimingPlan, envelope: Envelope, root: Path) -> StageTimes:
    """Runs what the plan says, in `root`, on a disk like `envelope`."""
    stages = compute_times(plan, root)
    store = store_folder(plan.recording.profile)
    least, _ = cache_limits(open_store(store))
    runtime = plan.recording.runtime.model_copy(update={"cache_bytes": least.num_bytes})
    live = record_trace(plan.recording.model_copy(update={"runtime": runtime}), root=root)
    inputs = twin_inputs(live, runtime, store)
    measured = decoded(read_events(live.path / "events.parquet"))
    return fit_host_times(stages, lambda made: decoded(inputs.replay(made, envelope)), measured)


def compute_times(plan: TimingPlan, root: Path) -> StageTimes:
    """What the stages take when nothing has to be read; leaves a result folder of kind `stages`."""
    recording = plan.recording
    runtime = recording.runtime.model_copy(update={"cache_bytes": None, "envelope": "", "uncached": False})
    folder = RunFolder.create(root, "stages", plan, profile=recording.profile, evidence=Evidence.PHYSICAL)
    with folder, StreamedEngine(store_folder(recording.profile), runtime, folder.events) as engine:
        prompt = choose_prompts(recording)[0]
        ids = encode(load_tokenizer(recording.profile), prompt.text)[: recording.prompt_tokens]
        # the second time everything is cached
        for _ in range(2):
            folder.events.clear()
            session = Session(engine, tile=recording.tile, route_sink=RouteRecorder(prompt).record)
            for _ in generate(session, ids, recording.tokens, Sampler(SamplingConfig())):
                pass
        attribute(engine, session, plan.attribution_tokens)
        engine.close()
        folder.finish(tags=engine.identity)
    events = read_events(folder.path / "events.parquet")
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
