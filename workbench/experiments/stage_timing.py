"""Stage times for the twin, from runs of their own. Nothing of the run that is to be imitated goes in.

A run with everything cached, which does all that a trace run does, gives what a token takes without reads, and an attribution
of it the shares of the stages. What a read costs the computing thread comes from two trace runs with the smallest cache, one of
which starts nothing before all is there: the costs with which their twins wait as long, and take as long, as they did.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from workbench.analysis.twin_errors import Decoded, decoded
from workbench.config import Config
from workbench.experiments.attribution import attribute
from workbench.experiments.generate import encode, load_tokenizer
from workbench.experiments.trace import RouteRecorder, TraceConfig, choose_prompts
from workbench.paths import store_folder
from workbench.runtime.engine import StreamedEngine
from workbench.runtime.sampling import Sampler
from workbench.runtime.session import Session, generate
from workbench.schema import Evidence, RunFolder, read_events
from workbench.simulate.stages import StageTimes
from workbench.units import NS_PER_MS

_MOST_READ_US = 2000.0
_HALVINGS = 14


class TimingPlan(Config):
    """What is run with everything cached."""

    recording: TraceConfig
    """Its first prompt is decoded twice: the second time nothing is read, and that is what counts."""
    attribution_tokens: int = Field(16, ge=1)
    """Tokens whose stages are timed one by one, behind the rest."""


def timing_steps(plan: TimingPlan, root: Path) -> Iterator[RunFolder]:
    """Times the stages token by token; yields the folder, of kind `stages`, the last time when it is finished."""
    recording = plan.recording
    runtime = recording.runtime.model_copy(update={"cache_bytes": None, "envelope": "", "uncached": False})
    folder = RunFolder.create(root, "stages", plan, profile=recording.profile, evidence=Evidence.PHYSICAL)
    with folder, StreamedEngine(store_folder(recording.profile), runtime, folder.events) as engine:
        prompt = choose_prompts(recording)[0]
        ids = encode(load_tokenizer(recording.profile), prompt.text)[: recording.prompt_tokens]
        for is_timed in (False, True):
            folder.events.clear()
            session = Session(engine, tile=recording.tile, route_sink=RouteRecorder(prompt).record)
            for _ in generate(session, ids, recording.tokens, Sampler(recording.sampling)):
                if is_timed:
                    yield folder
        attribute(engine, session, plan.attribution_tokens)
        engine.close()
        folder.finish(tags=engine.identity)
    yield folder


def take_turns(runs: Sequence[Iterator[RunFolder]]) -> list[RunFolder]:
    """Drives runs in turn, a token each, so that whatever else the machine does falls on all alike: their folders."""
    folders: dict[int, RunFolder] = {}
    going = dict(enumerate(runs))
    while going:
        for place, run in list(going.items()):
            folder = next(run, None)
            if folder is None:
                del going[place]
            else:
                folders[place] = folder
    return [folders[place] for place in range(len(runs))]


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """A run with the smallest cache, and its twin as a function of stage times."""

    live: Decoded
    replay: Callable[[StageTimes], Decoded]


def compute_times(timed: RunFolder) -> StageTimes:
    """What the stages take when nothing has to be read: shares of the attribution, scaled to the plain token."""
    events = read_events(timed.path / "events.parquet")
    plain = decoded(events)
    stages = StageTimes.from_attribution(events, f"stage timing {timed.path.name}")
    return stages.scaled((plain.token_ms - plain.exposed_wait_ms) * NS_PER_MS)


def fit_read_cost(stages: StageTimes, waiting: Calibration, alike: Calibration) -> StageTimes:
    """The stage times with what a read costs the computing thread.

    `waiting` starts nothing before all is there: its waits tell what a read costs when its bytes come. `alike` computes as the
    run to be imitated does: its tokens tell what a read costs besides.
    """
    take_us = _solve(
        lambda us: waiting.replay(stages.model_copy(update={"take_us": us})).exposed_wait_ms, waiting.live.exposed_wait_ms
    )
    stages = stages.model_copy(update={"take_us": take_us})
    ask_us = _solve(lambda us: alike.replay(stages.model_copy(update={"ask_us": us})).token_ms, alike.live.token_ms)
    return stages.model_copy(update={"ask_us": ask_us})


def _solve(grows: Callable[[float], float], wanted: float) -> float:
    """Where a growing function of microseconds reaches a value, by bisection; 0 where it starts above."""
    low, high = 0.0, _MOST_READ_US
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if grows(middle) > wanted else (middle, high)
    return low
