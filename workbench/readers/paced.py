"""A real reader slowed to the envelope of another disk, on the real clock. Emulated: never evidence of that disk."""

import heapq
import itertools
from collections.abc import Sequence
from pathlib import Path

from workbench.readers.base import Completion, Read, Reader
from workbench.readers.clock import Clock, RealClock, end_ns, left_s
from workbench.readers.disk import Disk


class PacedReader(Reader):
    """Holds every completion of `inner` until the modelled disk would have been done."""

    def __init__(self, inner: Reader, disk: Disk, clock: Clock | None = None) -> None:
        self._inner = inner
        self._disk = disk
        self._clock = clock or RealClock()
        self._due: dict[int, int] = {}
        self._held: list[tuple[int, int, Completion]] = []
        self._order = itertools.count()
        self.num_reads = 0
        self.num_overdue = 0
        """Reads for which the real disk was slower than the modelled one: the emulation is too slow by their share."""

    @property
    def in_flight(self) -> int:
        """Reads taken and not yet reported by `poll`."""
        return len(self._due) + len(self._held)

    def open_file(self, path: Path) -> int:
        """Opens a file in the inner reader."""
        return self._inner.open_file(path)

    def submit(self, reads: Sequence[Read]) -> int:
        """Passes a batch on and notes when each read is due. Keys must be unique among reads in flight."""
        now_ns = self._clock.now_ns()
        num_taken = self._inner.submit(reads)
        for read in reads[:num_taken]:
            self._due[read.key] = self._disk.ready_ns(now_ns, read.num_bytes)
        self.num_reads += num_taken
        return num_taken

    def poll(self, timeout_s: float | None = 0.0) -> list[Completion]:
        """Completions that are due."""
        end = end_ns(self._clock, timeout_s)
        while True:
            self._hold(self._inner.poll(0.0))
            done = self._take_due()
            if done or not self.in_flight or (end is not None and self._clock.now_ns() >= end):
                return done
            self._wait(end)

    def _wait(self, end: int | None) -> None:
        """Until something may be due: a held completion's time, one more of the inner reader, or the end."""
        until = self._held[0][0] if self._held else None
        until = end if until is None or (end is not None and end < until) else until
        if self._due:
            self._hold(self._inner.poll(left_s(self._clock, until)))
        elif until is not None:
            self._clock.sleep_until(until)

    def _hold(self, completions: Sequence[Completion]) -> None:
        for completion in completions:
            due_ns = self._due.pop(completion.key)
            self.num_overdue += completion.ready_ns > due_ns
            completion.ready_ns = max(completion.ready_ns, due_ns)
            heapq.heappush(self._held, (completion.ready_ns, next(self._order), completion))

    def _take_due(self) -> list[Completion]:
        now_ns = self._clock.now_ns()
        done = []
        while self._held and self._held[0][0] <= now_ns:
            done.append(heapq.heappop(self._held)[2])
        return done

    def close(self) -> None:
        """Closes the inner reader."""
        self._inner.close()
        self._due.clear()
        self._held.clear()
