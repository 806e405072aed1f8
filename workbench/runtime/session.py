"""A session decodes one sequence: prompt in, one record a token out. Each pass is one transaction over the whole state."""

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx
import numpy as np

from workbench.model.model import Model
from workbench.model.moe import Route
from workbench.runtime.evaluation import Evaluation
from workbench.runtime.forward import PREFILL_TILE, ExpertSource, RowSource, forward
from workbench.runtime.sampling import Sampler
from workbench.runtime.step import Step
from workbench.schema import EventLog, fingerprint


class Engine(Protocol):
    """What a session computes on: a model, its experts and rows, and how to end or give up a pass."""

    model: Model
    step: Step
    log: EventLog
    evaluation: Evaluation
    resident_bytes: int

    @property
    def experts(self) -> ExpertSource:
        """Where routed experts' values come from."""

    @property
    def rows(self) -> RowSource:
        """Where n-gram rows come from."""

    @property
    def cache_bytes(self) -> int:
        """Bytes of slots and pages."""

    @property
    def identity(self) -> dict[str, str]:
        """Digests of what it computes on, for a result's tags."""

    def settle(self) -> None:
        """A pass was evaluated: slots it held may go."""

    def abandon(self, request: int) -> None:
        """A pass failed: nothing of it is held any longer."""


@dataclass(frozen=True, kw_only=True)
class TokenRecord:
    """One generated token."""

    token_id: int
    position: int
    """Of the token in the sequence."""
    t_ns: int
    """When it was chosen."""


RouteSink = Callable[[Step, int, np.ndarray, np.ndarray, np.ndarray], None]
"""Called with the pass, the layer, its tokens `[T]`, ids `[T, k]` in rank order and weights `[T, k]`."""


class Session:
    """One sequence on one engine."""

    def __init__(
        self, engine: Engine, *, request: int = 0, tile: int = PREFILL_TILE, route_sink: RouteSink | None = None
    ) -> None:
        self.engine = engine
        self.request = request
        self.state = engine.model.new_state()
        self._tile = tile
        self._route_sink = route_sink
        self._routing = hashlib.sha256()
        self._chosen: _Chosen | None = None
        self._tokens = np.zeros(0, np.int64)

    @property
    def routing_digest(self) -> str:
        """SHA-256 over ids, order and weights of every committed pass, by layer and token."""
        return self._routing.hexdigest()

    def prefill(self, tokens: Sequence[int]) -> np.ndarray:
        """Runs a prompt (or a turn's) in tiles: float32 logits `[vocab]` of its last token."""
        ids = np.asarray(tokens, dtype=np.int64)
        for start in range(0, len(ids), self._tile):
            logits = self._pass(ids[start : start + self._tile], "prefill")
        return logits

    def decode(self, token: int, phase: str = "decode") -> np.ndarray:
        """Runs one token: float32 logits `[vocab]` of the next. `phase` names it in events."""
        return self._pass(np.array([token], dtype=np.int64), phase)

    def _pass(self, tokens: np.ndarray, phase: str) -> np.ndarray:
        engine, state = self.engine, self.state
        engine.step.request, engine.step.phase, engine.step.position = self.request, phase, state.position
        self._tokens, routing = tokens, self._routing.copy()
        start_ns = time.monotonic_ns()
        engine.evaluation.start_pass()
        state.begin()
        try:
            logits = self._forward(tokens)
            self._note_route()
            last = engine.evaluation.read(logits)[0]
        except BaseException:
            state.abort()
            self._routing, self._chosen = routing, None
            engine.abandon(self.request)
            raise
        state.commit()
        engine.settle()
        engine.evaluation.end_pass()
        end_ns = time.monotonic_ns()
        columns = {"request": self.request, "phase": phase, "position": state.position - 1, "value": float(len(tokens))}
        engine.log.add(end_ns, "token", duration_ns=end_ns - start_ns, **columns)
        return last

    def _forward(self, tokens: np.ndarray) -> mx.array:
        """Logits `[1, vocab]` of the last token, sent off."""
        engine, evaluation = self.engine, self.engine.evaluation
        logits = forward(
            engine.model,
            engine.experts,
            engine.rows,
            self.state,
            tokens,
            num_logits=1,
            observe=self._observe,
            send=evaluation.send,
        )
        evaluation.send(logits)
        return logits

    def _observe(self, layer: int, route: Route) -> None:
        # while this layer computes; done at once, the experts of the layer before would have waited for it
        self._note_route()
        self._chosen = _Chosen(time.monotonic_ns(), layer, route.ids, route.weights)

    def _note_route(self) -> None:
        """Hashes, logs and hands on the choice of the layer that ran last."""
        if (chosen := self._chosen) is None:
            return
        self._chosen = None
        step = self.engine.step
        ids, weights = np.array(chosen.ids), np.array(chosen.weights)
        first_key = chosen.layer * self.engine.model.geometry.num_experts
        self.engine.log.add(
            chosen.t_ns,
            "route",
            request=self.request,
            phase=step.phase,
            position=step.position,
            layer=chosen.layer,
            identity=fingerprint(first_key + expert for expert in set(ids.ravel().tolist())),
        )
        self._routing.update(ids.astype("<i4").tobytes())
        self._routing.update(weights.astype("<f4").tobytes())
        if self._route_sink is not None:
            self._route_sink(step, chosen.layer, self._tokens, ids, weights)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A layer's route, computed or on its way, and not yet noted."""

    t_ns: int
    layer: int
    ids: mx.array
    weights: mx.array


def generate(
    session: Session, prompt: Sequence[int], max_tokens: int, sampler: Sampler, *, stop: frozenset[int] = frozenset()
) -> Iterator[TokenRecord]:
    """Prefills `prompt`, then yields up to `max_tokens` tokens; ends behind a token of `stop`.

    The last token is run too, so that a later turn goes on from the whole sequence.
    """
    session.engine.log.add(time.monotonic_ns(), "mark", name="request_start", request=session.request)
    logits = session.prefill(prompt)
    for _ in range(max_tokens):
        token = sampler.choose(logits)
        yield TokenRecord(token_id=token, position=session.state.position, t_ns=time.monotonic_ns())
        logits = session.decode(token)
        if token in stop:
            return
