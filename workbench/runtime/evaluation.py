"""Where the host waits for the device: each such place is an event, so that host time can be told from it."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

import mlx.core as mx
import numpy as np

from workbench.runtime.forward import RunStage
from workbench.scheduling.ticket import Origin, Scope
from workbench.schema import EventLog

T = TypeVar("T")


class Evaluation:
    """Dispatches arrays to the device and waits for them, on behalf of the pass that a scope names."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self.sent_ns = 0
        """Time that `send` has taken so far."""
        self.stage_hook: RunStage | None = None
        """Runs every stage in the engine's place, so that an attribution run can time each; None: stages run untimed."""

    def stage(self, name: str, layer: int, compute: Callable[[], Any]) -> Any:
        """Runs a stage: the result of `compute()`."""
        return compute() if self.stage_hook is None else self.stage_hook(name, layer, compute)

    def send(self, *arrays: mx.array) -> None:
        """Dispatches arrays. MLX queues only a few operations: when its queue is full, the host waits here too."""
        start_ns = time.monotonic_ns()
        mx.async_eval(*arrays)
        self.sent_ns += time.monotonic_ns() - start_ns

    def note_sent(self, scope: Scope, sent_ns: int) -> None:
        """Logs the time that `send` took in a pass that ends."""
        self._note(time.monotonic_ns(), "evaluate", scope, sent_ns)["name"] = "send"

    def finish(self, scope: Scope, *arrays: mx.array) -> None:
        """Waits until the given arrays have been computed."""
        self._timed("evaluate", scope, lambda: mx.eval(*arrays))

    def finish_all(self, scope: Scope | Origin) -> None:
        """Waits until the device is idle."""
        self._timed("evaluate", scope, mx.synchronize)

    def read(self, scope: Scope, array: mx.array) -> np.ndarray:
        """The values of an array, once computed."""
        return self._timed("evaluate", scope, lambda: np.array(array))

    def read_back(self, scope: Scope, layer: int, choice: mx.array) -> np.ndarray:
        """The ids that a router chose, or the missing ones: the wait that a layer's reads can't avoid."""
        return self._timed("readback", scope, lambda: np.array(choice), layer)

    def _timed(self, kind: str, scope: Scope | Origin, work: Callable[[], T], layer: int | None = None) -> T:
        start_ns = time.monotonic_ns()
        result = work()
        row = self._note(start_ns, kind, scope, time.monotonic_ns() - start_ns)
        if layer is not None:
            row["layer"] = layer
        return result

    def _note(self, t_ns: int, kind: str, scope: Scope | Origin, duration_ns: int) -> dict[str, object]:
        row: dict[str, object] = {
            "t_ns": t_ns,
            "kind": kind,
            "request": scope.request,
            "phase": scope.phase,
            "position": scope.position,
            "duration_ns": duration_ns,
        }
        self._log.append(row)
        return row
