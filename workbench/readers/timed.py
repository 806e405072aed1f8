"""Reads on a virtual clock, completed at the time that a model of a disk gives. Simulated."""

import heapq
import itertools
from collections.abc import Sequence
from pathlib import Path

from workbench.readers.base import Completion, Read, Reader
from workbench.readers.clock import VirtualClock, end_ns
from workbench.readers.disk import Disk


class TimedReader(Reader):
    """Polls move the clock to the next completion. `inner` moves the bytes at that moment; None: no bytes are moved."""

    def __init__(
        self, inner: Reader | None, disk: Disk, clock: VirtualClock, *, max_queued: int = 1 << 20, behind_ns: int = 0
    ) -> None:
        """`behind_ns`: host time per submitted read, nanoseconds, by which `submit` moves the clock."""
        self._inner = inner
        self._disk = disk
        self._clock = clock
        self._max_queued = max_queued
        self._behind_ns = behind_ns
        self._num_files = 0
        self._coming: list[tuple[int, int, Read]] = []
        self._order = itertools.count()

    @property
    def in_flight(self) -> int:
        """Reads accepted and not yet reported by `poll`."""
        return len(self._coming)

    def open_file(self, path: Path) -> int:
        """Opens a file in the inner reader."""
        self._num_files += 1
        return self._num_files - 1 if self._inner is None else self._inner.open_file(path)

    def submit(self, reads: Sequence[Read]) -> int:
        """Accepts a batch at the clock's time."""
        taken = reads[: max(0, self._max_queued - len(self._coming))]
        now_ns = self._clock.now_ns()
        for read in taken:
            read.submit_ns = now_ns
            heapq.heappush(self._coming, (self._disk.ready_ns(now_ns, read.num_bytes), next(self._order), read))
        if self._behind_ns:
            self._clock.sleep_until(now_ns + self._behind_ns * len(taken))
        return len(taken)

    def poll(self, timeout_s: float | None = 0.0, at_least: int = 1) -> list[Completion]:
        """Moves the clock to the next completion, or by `timeout_s` when that is earlier."""
        if not self._coming:
            return []
        next_ns = self._coming[0][0]
        if timeout_s == 0.0:
            if next_ns > self._clock.now_ns():
                return []
        else:
            end = end_ns(self._clock, timeout_s)
            self._clock.sleep_until(next_ns if end is None or next_ns <= end else end)
        done, now_ns = [], self._clock.now_ns()
        while self._coming and self._coming[0][0] <= now_ns:
            ready_ns, _, read = heapq.heappop(self._coming)
            error = None if self._inner is None else self._move(self._inner, read)
            done.append(Completion(read.key, read.submit_ns, ready_ns, error))
        return done

    def _move(self, inner: Reader, read: Read) -> OSError | None:
        submit_ns = read.submit_ns
        inner.submit([read])
        (completion,) = inner.poll(None)
        read.submit_ns = submit_ns
        return completion.error

    def close(self) -> None:
        """Drops reads in flight and closes the inner reader."""
        self._coming.clear()
        if self._inner is not None:
            self._inner.close()
