"""A real reader slowed to the envelope of another disk, on the real clock. Emulated: never evidence of that disk."""

import heapq
import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from workbench.readers.base import Completion, Read, Reader
from workbench.readers.clock import Clock, RealClock, end_ns, left_s
from workbench.readers.disk import Disk


class _Pace:
    """Completion times on the modelled disk: a queue's next read starts when an earlier one has ended."""

    def __init__(self, disk: Disk, depth: Mapping[str, int] | None) -> None:
        self._disk, self._depth = disk, depth
        self._waiting: dict[str, deque[tuple[int, int]]] = {}
        self._flying: list[tuple[int, int, int, str]] = []
        self._in_queue: dict[str, int] = {}
        self._order = itertools.count()

    @property
    def next_ns(self) -> int | None:
        """Completion time of the next read; None: no read is in flight."""
        return self._flying[0][0] if self._flying else None

    def submit(self, read: Read, now_ns: int) -> None:
        """Submits a read; call `advance` for this time first."""
        queue = read.queue if self._depth is not None else ""
        if self._depth is None or self._in_queue.get(queue, 0) < self._depth[queue]:
            self._start(read.key, read.num_bytes, queue, now_ns)
        else:
            self._waiting.setdefault(queue, deque()).append((read.key, read.num_bytes))

    def advance(self, now_ns: int) -> list[tuple[int, int]]:
        """Key and time of the reads completed by now; waiting reads start at these times."""
        done = []
        while self._flying and self._flying[0][0] <= now_ns:
            due_ns, _, key, queue = heapq.heappop(self._flying)
            self._in_queue[queue] -= 1
            done.append((key, due_ns))
            if waiting := self._waiting.get(queue):
                self._start(*waiting.popleft(), queue, due_ns)
        return done

    def _start(self, key: int, num_bytes: int, queue: str, start_ns: int) -> None:
        self._in_queue[queue] = self._in_queue.get(queue, 0) + 1
        heapq.heappush(self._flying, (self._disk.ready_ns(start_ns, num_bytes), next(self._order), key, queue))


class PacedReader(Reader):
    """Delays each completion of `inner` to its time on the modelled disk."""

    def __init__(self, inner: Reader, disk: Disk, depth: Mapping[str, int] | None = None, clock: Clock | None = None) -> None:
        """`depth`: most reads in flight on the modelled disk, an entry for every queue; None: no limit."""
        self._inner = inner
        self._clock = clock or RealClock()
        self._pace = _Pace(disk, depth)
        self._coming = 0
        self._due: dict[int, int] = {}
        self._arrived: dict[int, Completion] = {}
        self._done: list[Completion] = []
        self.num_reads = 0
        self.num_overdue = 0
        """Reads that completed later than on the modelled disk; where many did, the emulation is slower than the model."""

    @property
    def in_flight(self) -> int:
        """Reads accepted and not yet reported by `poll`."""
        return self._coming

    def open_file(self, path: Path) -> int:
        """Opens a file in the inner reader."""
        return self._inner.open_file(path)

    def submit(self, reads: Sequence[Read]) -> int:
        """Submits a batch; the modelled disk gets reads while its queues have room. Keys must be unique in flight."""
        self._look()
        now_ns = self._clock.now_ns()
        num_taken = self._inner.submit(reads)
        for read in reads[:num_taken]:
            self._pace.submit(read, now_ns)
        self.num_reads += num_taken
        self._coming += num_taken
        return num_taken

    def poll(self, timeout_s: float | None = 0.0, at_least: int = 1) -> list[Completion]:
        """Completions of reads that have ended both in the inner reader and on the modelled disk."""
        end = end_ns(self._clock, timeout_s)
        while True:
            self._look()
            if self._done or not self._coming or (end is not None and self._clock.now_ns() >= end):
                done, self._done = self._done, []
                self._coming -= len(done)
                return done
            self._wait(end)

    def _wait(self, end: int | None) -> None:
        """Waits for the modelled disk's next completion, one of the inner reader, or the timeout."""
        until = self._pace.next_ns
        until = end if until is None or (end is not None and end < until) else until
        if self._inner.in_flight:
            self._hold(self._inner.poll(left_s(self._clock, until)))
        elif until is not None:
            self._clock.sleep_until(until)

    def _look(self) -> None:
        """Polls the inner reader and the model; finishes the reads that are complete in both."""
        self._hold(self._inner.poll(0.0))
        for key, due_ns in self._pace.advance(self._clock.now_ns()):
            if key in self._arrived:
                # the inner timestamp may be late (its thread waits for the GIL), and no poll since `due_ns` looked for the read
                self._finish(key, due_ns)
            else:
                self._due[key] = due_ns
                self.num_overdue += 1

    def _hold(self, completions: Sequence[Completion]) -> None:
        for completion in completions:
            self._arrived[completion.key] = completion
            if completion.key in self._due:
                self._finish(completion.key, max(completion.ready_ns, self._due.pop(completion.key)))

    def _finish(self, key: int, ready_ns: int) -> None:
        """Makes the completion of a read that is complete in both the inner reader and the model."""
        completion = self._arrived.pop(key)
        completion.ready_ns = ready_ns
        self._done.append(completion)

    def close(self) -> None:
        """Closes the inner reader."""
        self._inner.close()
        self._coming = 0
        self._due.clear()
        self._arrived.clear()
        self._done.clear()
