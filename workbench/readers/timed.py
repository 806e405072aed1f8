"""Reads on a virtual clock: the same bytes or none, done when the model of a disk says so. Simulated."""

import heapq
import itertools
from collections.abc import Sequence
from pathlib import Path

from workbench.readers.base import Completion, Read, Reader
from workbench.readers.clock import VirtualClock, end_ns
from workbench.readers.disk import Disk


class TimedReader(Reader):
    """Polls move the clock to the next completion. `inner` moves the bytes at that moment; a `NullReader` moves none."""

    def __init__(self, inner: Reader, disk: Disk, clock: VirtualClock, *, max_queued: int = 1 << 20) -> None:
        self._inner = inner
        self._disk = disk
        self._clock = clock
        self._max_queued = max_queued
        self._coming: list[tuple[int, int, Read]] = []
        self._order = itertools.count()

    @property
    def in_flight(self) -> int:
        """Reads taken and not yet reported by `poll`."""
        return len(self._coming)

    def open_file(self, path: Path) -> int:
        """Opens a file in the inner reader."""
        return self._inner.open_file(path)

    def submit(self, reads: Sequence[Read]) -> int:
        """Takes a batch at the clock's time."""
        taken = reads[: max(0, self._max_queued - len(self._coming))]
        now_ns = self._clock.now_ns()
        for read in taken:
            read.submit_ns = now_ns
            heapq.heappush(self._coming, (self._disk.ready_ns(now_ns, read.num_bytes), next(self._order), read))
        return len(taken)

    def poll(self, timeout_s: float | None = 0.0, at_least: int = 1) -> list[Completion]:
        """Moves the clock to the next completion, or by `timeout_s` when that is earlier."""
        end = end_ns(self._clock, timeout_s)
        if self._coming and (end is None or self._coming[0][0] <= end):
            self._clock.sleep_until(self._coming[0][0])
        elif end is not None and self._coming:
            self._clock.sleep_until(end)
        done = []
        while self._coming and self._coming[0][0] <= self._clock.now_ns():
            ready_ns, _, read = heapq.heappop(self._coming)
            done.append(Completion(read.key, read.submit_ns, ready_ns, self._move(read)))
        return done

    def _move(self, read: Read) -> OSError | None:
        submit_ns = read.submit_ns
        self._inner.submit([read])
        (completion,) = self._inner.poll(None)
        read.submit_ns = submit_ns
        return completion.error

    def close(self) -> None:
        """Drops what is coming and closes the inner reader."""
        self._coming.clear()
        self._inner.close()
