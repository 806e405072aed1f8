"""Stage times of a decoded token, from a run of its own: an evaluation after each stage changes timing.

The stages and their order are `forward`'s; layers are wrapped, nothing is written twice. `gdn` and `qsa` include the
attention's hyper-connection, `router` includes the MLP's.
"""

import time
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np

from workbench.geometry import INDEXED_ATTENTION
from workbench.model.layer import Layer
from workbench.model.model import Model
from workbench.model.moe import Route
from workbench.model.state import SequenceState
from workbench.runtime.session import Session
from workbench.runtime.streamed import StreamedEngine
from workbench.schema import EventLog

PHASE = "attribution"


class StageClock:
    """Evaluates what a stage returns and logs the time it took."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self.layer = -1
        self.position = 0

    def run(self, name: str, stage: Callable[[], Any]) -> Any:
        """Runs and evaluates one stage."""
        start_ns = time.monotonic_ns()
        result = stage()
        mx.eval(result.ids, result.weights, result.hidden, result.inject) if isinstance(result, Route) else mx.eval(result)
        duration_ns = time.monotonic_ns() - start_ns
        self._log.add(
            start_ns, "stage", name=name, phase=PHASE, layer=self.layer, position=self.position, duration_ns=duration_ns
        )
        return result


class _TimedLayer:
    """A layer whose stages are timed one by one."""

    def __init__(self, layer: Layer, clock: StageClock) -> None:
        self._layer, self._clock = layer, clock
        self.index, self.kind, self.has_ple = layer.index, layer.kind, layer.has_ple

    def inject_ple(self, x: mx.array, rows: mx.array, state: SequenceState) -> mx.array:
        self._clock.layer = self.index
        return self._clock.run("ple", lambda: self._layer.inject_ple(x, rows, state))

    def attend(self, x: mx.array, state: SequenceState) -> mx.array:
        self._clock.layer, self._clock.position = self.index, state.position
        return self._clock.run("qsa" if self.kind == INDEXED_ATTENTION else "gdn", lambda: self._layer.attend(x, state))

    def route(self, x: mx.array) -> Route:
        return self._clock.run("router", lambda: self._layer.route(x))

    def shared(self, hidden: mx.array) -> mx.array:
        return self._clock.run("shared", lambda: self._layer.shared(hidden))

    def combine(self, x: mx.array, route: Route, expert_outputs: mx.array, shared: mx.array) -> mx.array:
        return self._clock.run("down", lambda: self._layer.combine(x, route, expert_outputs, shared))


class _TimedModel:
    """A model whose stages are timed; what is not a stage goes to the model itself."""

    def __init__(self, model: Model, clock: StageClock) -> None:
        self._model, self._clock = model, clock
        self.geometry = model.geometry
        self.layers = tuple(_TimedLayer(layer, clock) for layer in model.layers)

    def row_ids(self, tokens: np.ndarray, state: SequenceState) -> dict[int, np.ndarray]:
        return self._model.row_ids(tokens, state)

    def follow(self, tokens: np.ndarray, wide: mx.array, state: SequenceState) -> tuple[mx.array, ...]:
        return self._model.follow(tokens, wide, state)

    def embed(self, tokens: mx.array) -> mx.array:
        self._clock.layer = -1
        return self._clock.run("head", lambda: self._model.embed(tokens))

    def logits(self, x: mx.array) -> mx.array:
        self._clock.layer = -1
        return self._clock.run("head", lambda: self._model.logits(x))


def attribute(engine: StreamedEngine, session: Session, num_tokens: int) -> None:
    """Decodes `num_tokens` more tokens greedily with each stage evaluated and logged, phase `attribution`."""
    clock = StageClock(engine.log)
    model = engine.model
    engine.model = _TimedModel(model, clock)  # type: ignore[assignment]
    engine.experts.timed = clock.run
    try:
        token = int(np.argmax(np.array(session.state.arrays["logits"])[0]))
        for _ in range(num_tokens):
            token = int(np.argmax(session.decode(token, PHASE)))
    finally:
        engine.model, engine.experts.timed = model, None
