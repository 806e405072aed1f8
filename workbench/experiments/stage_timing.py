"""Stage times for the twin, from runs of their own. Nothing of the run that is to be imitated goes in.

A run with everything cached, which does all that a trace run does, gives what a token takes without reads, and an attribution
of it the shares of the stages. What reads cost the computing thread comes from two trace runs with the smallest cache, one of
which starts nothing before all is there: the costs with which their twins wait as long, and take as long, as they did.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import Field

from workbench.analysis.twin_errors import Decoded, decoded
from workbench.config import Config
from workbench.experiments.attribution import attribute
from workbench.experiments.generate import encode, load_tokenizer
from workbench.experiments.routes import RouteRecorder
from workbench.experiments.trace import TraceConfig, choose_prompts
from workbench.paths import store_folder
from workbench.runtime.sampling import Sampler
from workbench.runtime.session import Session, generate
from workbench.runtime.streamed import StreamedEngine
from workbench.schema import Evidence, RunFolder, read_events
from workbench.simulate.stages import StageTimes
from workbench.units import NS_PER_MS

_MOST_US = 2000.0
_ROUNDS = 2
_STEPS = 24
_CLOSE = 1e-3
"""Share of a live figure that its twin may be off by."""


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
            session = Session(engine, tile=recording.tile, route_sink=RouteRecorder(prompt.family, prompt.split).record)
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
    """The stage times with what reads cost the computing thread.

    `waiting` starts nothing before all is there: its time besides waiting tells what a read costs, wherever that falls; its waits
    how much of it falls into the flight or, where it waits longer than its twin, what comes with the bytes. `alike` computes as
    the run to be imitated does: its tokens tell what its waves cost.
    """

    def of_read(cost_us: float, shift: float) -> StageTimes:
        behind_us, take_us = max(-shift, 0.0) * cost_us, max(shift, 0.0) * _MOST_US
        return stages.model_copy(update={"ask_us": cost_us - behind_us, "behind_us": behind_us, "take_us": take_us})

    def busy_ms(cost_us: float, shift: float) -> float:
        return _busy_ms(waiting.replay(of_read(cost_us, shift)))

    def wait_ms(cost_us: float, shift: float) -> float:
        return waiting.replay(of_read(cost_us, shift)).exposed_wait_ms

    cost_us = shift = 0.0
    for _ in range(_ROUNDS):
        cost_us = _solve(partial(busy_ms, shift=shift), _busy_ms(waiting.live), 0.0, _MOST_US)
        shift = _solve(partial(wait_ms, cost_us), waiting.live.exposed_wait_ms, -1.0, 1.0)
    found = of_read(cost_us, shift)

    def with_waves(wave_us: float) -> StageTimes:
        return found.model_copy(update={"wave_us": wave_us})

    return with_waves(_solve(lambda us: alike.replay(with_waves(us)).token_ms, alike.live.token_ms, 0.0, _MOST_US))


def _busy_ms(run: Decoded) -> float:
    return run.token_ms - run.exposed_wait_ms


def _solve(grows: Callable[[float], float], wanted: float, low: float, high: float) -> float:
    """Where a growing function reaches a value, by the Illinois rule; the end it is nearest to where it does not."""
    below, above = grows(low) - wanted, grows(high) - wanted
    if below >= 0 or above <= below:
        return low
    if above <= 0:
        return high
    was_above = None
    for _ in range(_STEPS):
        middle = low - below * (high - low) / (above - below)
        error = grows(middle) - wanted
        if abs(error) <= _CLOSE * abs(wanted):
            return middle
        is_above = error > 0
        # an end that stays twice counts half, so that it moves too
        share = 0.5 if is_above is was_above else 1.0
        was_above = is_above
        if is_above:
            high, above, below = middle, error, below * share
        else:
            low, below, above = middle, error, above * share
    return low
