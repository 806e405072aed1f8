"""Loads that run beside reads: none, MLX, or plain Python; a load counts its steps, so that its own slowdown shows."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from workbench.units import NS_PER_S

_WIDE, _NARROW, _GROUP, _BITS = 2560, 640, 64, 4
"""One expert's gate matrix of Flash-Next: a step that takes about a millisecond on a core."""
_START_S = 0.05


class Load:
    """A thread that computes until `stop`; `steps` counts finished steps."""

    def __init__(self, kind: str) -> None:
        self.steps = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._mlx if kind == "mlx" else self._python, name=f"load-{kind}", daemon=True)

    def start(self) -> None:
        """Starts the thread and waits until it is warm."""
        self._thread.start()
        while not self.steps:
            time.sleep(0.001)
        time.sleep(_START_S)

    def stop(self) -> None:
        """Ends the thread."""
        self._stop.set()
        self._thread.join()

    def rate_for(self, seconds: float) -> float | None:
        """Steps per second while the caller sleeps for `seconds`; None when no step was finished."""
        steps, start_ns = self.steps, time.monotonic_ns()
        time.sleep(seconds)
        return self.rate_since(steps, start_ns)

    def rate_since(self, steps: int, start_ns: int) -> float | None:
        """Steps per second since `start_ns`, when `steps` were finished; None when no step was finished since."""
        return (self.steps - steps) * NS_PER_S / (time.monotonic_ns() - start_ns) or None

    def _python(self) -> None:
        value = 1
        while not self._stop.is_set():
            for _ in range(500):
                value = value * 5 % 1_000_003
            self.steps += 1

    def _mlx(self) -> None:
        import mlx.core as mx

        # only the thread that made an MLX stream can use it
        with mx.stream(mx.new_stream(mx.default_device())):
            weights = mx.quantize(mx.random.normal((_NARROW, _WIDE)), _GROUP, _BITS)
            hidden = mx.random.normal((1, _WIDE))
            mx.eval(weights, hidden)
            while not self._stop.is_set():
                mx.eval(mx.quantized_matmul(hidden, *weights, transpose=True, group_size=_GROUP, bits=_BITS))
                self.steps += 1


@contextmanager
def running(kind: str) -> Iterator[Load | None]:
    """Runs a load, `mlx` or `python`, warmed up, inside the block; yields None for `idle`."""
    if kind == "idle":
        yield None
        return
    load = Load(kind)
    load.start()
    try:
        yield load
    finally:
        load.stop()
