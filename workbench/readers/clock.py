"""Clocks that readers wait on: the machine's clock, and a virtual one that moves only by `sleep_until`."""

import time
from typing import Protocol

from workbench.units import NS_PER_S


class Clock(Protocol):
    """A clock that can wait."""

    def now_ns(self) -> int:
        """Monotonic nanoseconds."""

    def sleep_until(self, time_ns: int) -> None:
        """Returns at `time_ns`."""


class RealClock:
    """The machine's monotonic clock."""

    def now_ns(self) -> int:
        """Monotonic nanoseconds."""
        return time.monotonic_ns()

    def sleep_until(self, time_ns: int) -> None:
        """Returns at `time_ns`."""
        while (left_ns := time_ns - time.monotonic_ns()) > 0:
            time.sleep(left_ns / NS_PER_S)


class VirtualClock:
    """Starts at 0 and moves only by `sleep_until`, at once."""

    def __init__(self) -> None:
        self._now_ns = 0

    def now_ns(self) -> int:
        """Virtual nanoseconds."""
        return self._now_ns

    def sleep_until(self, time_ns: int) -> None:
        """Moves the clock to `time_ns`, unless the clock is later already."""
        if time_ns > self._now_ns:
            self._now_ns = time_ns


def end_ns(clock: Clock, timeout_s: float | None) -> int | None:
    """End of a wait of `timeout_s` from now; None: never."""
    return None if timeout_s is None else clock.now_ns() + int(timeout_s * NS_PER_S)


def left_s(clock: Clock, time_ns: int | None) -> float | None:
    """Seconds until `time_ns`, not negative; None: for ever."""
    return None if time_ns is None else max(0, time_ns - clock.now_ns()) / NS_PER_S
