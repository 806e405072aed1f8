"""Where the host stands still for compute: each such place is an event, so that host time can be told from it."""

import time
from collections.abc import Callable
from typing import TypeVar

import mlx.core as mx
import numpy as np

from workbench.runtime.step import Step
from workbench.schema import EventLog

T = TypeVar("T")


class Evaluation:
    """Evaluates on behalf of the pass under way."""

    def __init__(self, log: EventLog, step: Step) -> None:
        self._log, self._step = log, step
        self._sent_ns = 0

    def send(self, *arrays: mx.array) -> None:
        """Sends arrays off to be computed. MLX takes a few operations at a time: beyond them the host stands still here too."""
        start_ns = time.monotonic_ns()
        mx.async_eval(*arrays)
        self._sent_ns += time.monotonic_ns() - start_ns

    def start_pass(self) -> None:
        """What an earlier pass sent is no part of this one, even if that failed."""
        self._sent_ns = 0

    def end_pass(self) -> None:
        """Notes the time that `send` took in the pass that ends."""
        step, now_ns = self._step, time.monotonic_ns()
        where = {"request": step.request, "phase": step.phase, "position": step.position}
        self._log.add(now_ns, "evaluate", name="send", duration_ns=self._sent_ns, **where)

    def finish(self, *arrays: mx.array) -> None:
        """Returns when these have been computed."""
        self._timed("evaluate", lambda: mx.eval(*arrays))

    def finish_all(self) -> None:
        """Returns when nothing that was sent off is still computing."""
        self._timed("evaluate", mx.synchronize)

    def read(self, array: mx.array) -> np.ndarray:
        """An array's values."""
        return self._timed("evaluate", lambda: np.array(array))

    def read_back(self, layer: int, choice: mx.array) -> np.ndarray:
        """What a router chose, or what of it is missing: the wait that a layer's reads can't avoid."""
        return self._timed("readback", lambda: np.array(choice), layer=layer)

    def _timed(self, kind: str, work: Callable[[], T], **columns: int) -> T:
        start_ns, step = time.monotonic_ns(), self._step
        result = work()
        self._log.add(
            start_ns,
            kind,
            request=step.request,
            phase=step.phase,
            position=step.position,
            duration_ns=time.monotonic_ns() - start_ns,
            **columns,
        )
        return result
