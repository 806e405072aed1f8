"""Routes of one lane, recorded when they are committed: in the routing digest, the events and the sink."""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from workbench.model.moe import Route
from workbench.scheduling.ticket import Scope
from workbench.schema import EventLog, fingerprint

RouteSink = Callable[[Scope, int, np.ndarray, np.ndarray, np.ndarray], None]
"""Called at a commit with the pass, a layer, committed tokens `[n]`, their ids `[n, k]` in rank order and weights `[n, k]`."""


@dataclass(slots=True, eq=False)
class _Choice:
    """One layer's route of the pass under way."""

    t_ns: int
    layer: int
    ids: mx.array | np.ndarray
    weights: mx.array | np.ndarray
    identity: int = 0
    """Fingerprint of the experts that ran, including those of rejected rows."""


class RouteLog:
    """Routes of one lane: of the pass under way until its commit, then in the digest, the events and the sink."""

    def __init__(self, log: EventLog, num_experts: int, sink: RouteSink | None) -> None:
        self._log, self._num_experts, self._sink = log, num_experts, sink
        self._digest = hashlib.sha256()
        self._pending: list[_Choice] = []

    @property
    def digest(self) -> str:
        """SHA-256 over ids and weights of every committed token, by token and then by layer."""
        return self._digest.hexdigest()

    def note(self, layer: int, route: Route) -> None:
        """Notes the native router's choice for the rows of the pass."""
        if self._pending:
            # while this layer computes: asked at once, the experts of the layer before would have waited for it
            self._take(self._pending[-1])
        self._pending.append(_Choice(time.monotonic_ns(), layer, route.ids, route.weights))

    def read_back(self, ids: np.ndarray) -> None:
        """Notes the ids `[T, k]` of the last route, which the host has read back: they need not be read again."""
        self._pending[-1].ids = ids

    def _take(self, choice: _Choice) -> None:
        """Reads a computed choice from the device."""
        choice.ids, choice.weights = np.asarray(choice.ids), np.array(choice.weights)
        first_key = choice.layer * self._num_experts
        choice.identity = fingerprint(first_key + expert for expert in set(choice.ids.ravel().tolist()))

    def abort(self) -> None:
        """Drops the routes of a pass that was aborted."""
        self._pending.clear()

    def commit(self, scope: Scope, tokens: np.ndarray, num_tokens: int) -> np.ndarray:
        """Commits the first `num_tokens` of the pass's `tokens [T]`: returns their ids `[num_tokens, layers, k]`."""
        choices, self._pending = self._pending, []
        self._take(choices[-1])
        for choice in choices:
            row = {"t_ns": choice.t_ns, "kind": "route", "request": scope.request, "phase": scope.phase}
            row["position"], row["layer"], row["identity"] = scope.position, choice.layer, choice.identity
            self._log.append(row)
        ids = np.stack([choice.ids for choice in choices], axis=1)[:num_tokens].astype("<i4")
        weights = np.stack([choice.weights for choice in choices], axis=1)[:num_tokens].astype("<f4")
        self._digest.update(np.concatenate([ids.view(np.uint8), weights.view(np.uint8)], axis=2).tobytes())
        if self._sink is not None and num_tokens:
            for place, choice in enumerate(choices):
                self._sink(scope, choice.layer, tokens[:num_tokens], ids[:, place], weights[:, place])
        return ids
