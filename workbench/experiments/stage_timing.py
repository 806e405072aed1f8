"""Stage times for the twin, measured in separate runs: nothing of the run to be imitated is used.

A trace run with all records cached gives the time of a token without reads, and an attribution gives each stage's share of this
time. The CPU costs of reads are fitted to two trace runs with the smallest cache, one of them a barrier run: with the fitted
costs, the runs' twins have the same waits and token times as the runs.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import Field

from workbench.analysis.twin_errors import Decoded, decoded
from workbench.config import Config
from workbench.experiments.attribution import attribute
from workbench.experiments.routes import RouteRecorder
from workbench.experiments.text import encode, load_tokenizer
from workbench.experiments.trace import TraceConfig, choose_prompts
from workbench.paths import store_folder
from workbench.runtime.sampling import Sampler
from workbench.runtime.session import Session, generate
from workbench.runtime.streamed import StreamedEngine
from workbench.schema import Evidence, RunFolder, read_events
from workbench.simulate.stages import StageTimes
from workbench.units import NS_PER_MS

_MOST_US = 2000.0
"""Upper limit of each fitted cost, microseconds."""
_ROUNDS = 2
"""Rounds of fitting the cost of a read, then its split between submission, flight and completion."""
_STEPS = 24
"""Most steps of one fit."""
_CLOSE = 1e-3
"""Relative difference between twin and live run at which a fit stops."""


class TimingPlan(Config):
    """Settings of the run with all records cached."""

    recording: TraceConfig
    """Trace whose first prompt is decoded twice; only the second time, which reads nothing, is measured."""
    attribution_tokens: int = Field(16, ge=1)
    """Tokens decoded afterwards to time each stage."""


def timing_steps(plan: TimingPlan, root: Path) -> Iterator[RunFolder]:
    """Runs the stage timing; yields its result folder (kind `stages`) after each measured token, and again when finished."""
    recording = plan.recording
    runtime = recording.runtime.model_copy(update={"cache_bytes": None, "envelope": "", "uncached": False})
    folder = RunFolder.create(root, "stages", plan, profile=recording.profile, evidence=Evidence.PHYSICAL)
    with folder, StreamedEngine(store_folder(recording.profile), runtime, folder.events) as engine:
        prompt = choose_prompts(recording)[0]
        ids = encode(load_tokenizer(recording.profile), prompt.text, engine.model.geometry.vocab_size)[: recording.prompt_tokens]
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
    """Drives the runs alternately, one token each, so that load of the machine affects all alike; returns their folders."""
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
    """A live run with the smallest cache, and its twin as a function of stage times."""

    live: Decoded
    replay: Callable[[StageTimes], Decoded]


def compute_times(timed: RunFolder) -> StageTimes:
    """Stage times without reads: the attribution's shares, scaled to the token time of the run with all records cached."""
    events = read_events(timed.path / "events.parquet")
    plain = decoded(events)
    stages = StageTimes.from_attribution(events, f"stage timing {timed.path.name}")
    return stages.scaled((plain.token_ms - plain.exposed_wait_ms) * NS_PER_MS)


def fit_read_cost(stages: StageTimes, waiting: Calibration, alike: Calibration) -> StageTimes:
    """The stage times with fitted CPU costs: `ask_us`, `behind_us` and `take_us` per read, `wave_us` per wave.

    `waiting` is a barrier run: its token time less its wait time gives the CPU cost of a read outside the wait. Its wait time
    gives the part of this cost that overlaps the read (`behind_us`) or, if the run waits longer than its twin, the cost at
    completion (`take_us`). `alike` uses the waves of the run to be imitated: its token time gives `wave_us`.
    """

    def of_read(cost_us: float, shift: float) -> StageTimes:
        """`shift` in -1..0: share of `cost_us` after submission, negated; in 0..1: `take_us` as a share of `_MOST_US`."""
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
    """The argument in `low..high` at which an increasing function equals `wanted`, by the Illinois method (regula falsi).

    When the function does not reach `wanted`, the nearer end.
    """
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
        # Illinois: the value at an end that was kept twice is halved, so that this end moves too
        share = 0.5 if is_above is was_above else 1.0
        was_above = is_above
        if is_above:
            high, above, below = middle, error, below * share
        else:
            low, below, above = middle, error, above * share
    return low
