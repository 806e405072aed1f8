"""Wraps any reader and makes chosen reads fail, to test that a scheduler survives their faults."""

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np

from workbench.readers.base import Completion, Read, Reader
from workbench.readers.clock import Clock, RealClock, end_ns, left_s


class FaultKind(StrEnum):
    """Kind of fault of one read."""

    ERROR = "error"
    """The read ends at once with an error code."""
    SHORT = "short"
    """The second half of the read is missing, and the reader reports a short read."""
    CORRUPT = "corrupt"
    """The last demanded byte is flipped before CRC-32s are checked: undetected in a read without checksums."""
    DELAY = "delay"
    """The read is submitted late; its completion may follow a cancel."""
    HANG = "hang"
    """The read hangs until `thaw` is called."""
    REORDER = "reorder"
    """The read's completion is reported after that of the next read."""
    EXHAUSTED = "exhausted"
    """The reader refuses the read once, as a busy reader does."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault and its parameter."""

    kind: FaultKind
    code: int = errno.EIO
    """Error number, for `error`."""
    delay_ns: int = 0
    """Delay of the submission for `delay`, nanoseconds."""


class FaultyReader(Reader):
    """A reader that applies `fault_of(n)` to the n-th accepted read, counted from 0; None: no fault."""

    def __init__(self, inner: Reader, fault_of: Callable[[int], Fault | None], clock: Clock | None = None) -> None:
        self._inner = inner
        self._fault_of = fault_of
        self._clock = clock or RealClock()
        self._position = 0
        self._refused = -1
        self._marked: dict[int, tuple[Read, FaultKind]] = {}
        self._late: list[tuple[int, Read]] = []
        self._hung: list[Read] = []
        self._swapped: list[Completion] = []
        self._done: list[Completion] = []
        self.num_faults = 0

    @property
    def in_flight(self) -> int:
        """Reads accepted and not yet reported by `poll`, those that hang included."""
        return self._inner.in_flight + len(self._late) + len(self._hung) + len(self._swapped) + len(self._done)

    @property
    def num_hung(self) -> int:
        """Number of reads that wait for `thaw`."""
        return len(self._hung)

    def open_file(self, path: Path) -> int:
        """Opens a file in the inner reader."""
        return self._inner.open_file(path)

    def submit(self, reads: Sequence[Read]) -> int:
        """Accepts a batch, one read after the other."""
        for taken, read in enumerate(reads):
            fault = self._fault_of(self._position)
            if fault is not None and fault.kind is FaultKind.EXHAUSTED and self._refused != self._position:
                self._refused = self._position
                self.num_faults += 1
                return taken
            if not self._take(read, fault):
                return taken
            self._position += 1
        return len(reads)

    def _take(self, read: Read, fault: Fault | None) -> bool:
        kind = None if fault is None or fault.kind is FaultKind.EXHAUSTED else fault.kind
        if fault is None or kind is None:
            return self._inner.submit([read]) == 1
        read.submit_ns = self._clock.now_ns()
        if kind is FaultKind.ERROR:
            self._done.append(Completion(read.key, read.submit_ns, read.submit_ns, OSError(fault.code, os.strerror(fault.code))))
        elif kind is FaultKind.DELAY:
            self._late.append((read.submit_ns + fault.delay_ns, read))
        elif kind is FaultKind.HANG:
            self._hung.append(read)
        elif self._inner.submit([read]) == 1:
            self._marked[read.key] = read, kind
        else:
            return False
        self.num_faults += 1
        return True

    def thaw(self) -> int:
        """Submits the reads that hang; returns their number."""
        count = len(self._hung)
        self._late += [(0, read) for read in self._hung]
        self._hung.clear()
        return count

    def poll(self, timeout_s: float | None = 0.0, at_least: int = 1) -> list[Completion]:
        """Completions, faults applied. Raises RuntimeError when it would wait for ever on reads that hang."""
        end = end_ns(self._clock, timeout_s)
        while True:
            self._start_late()
            if not self._done and self.in_flight:
                self._wait(end)
            if self._swapped and not self._inner.in_flight and not self._late:
                self._done, self._swapped = self._done + self._swapped, []
            if self._done or not self.in_flight or (end is not None and self._clock.now_ns() >= end):
                done, self._done = self._done, []
                return done

    def _wait(self, end: int | None) -> None:
        starts = [start_ns for start_ns, _ in self._late] + ([] if end is None else [end])
        until = min(starts, default=None)
        if self._inner.in_flight:
            self._finish(self._inner.poll(left_s(self._clock, until)))
        elif until is not None:
            self._clock.sleep_until(until)
        elif not self._swapped:
            raise RuntimeError(f"{len(self._hung)} reads hang and nothing else is in flight: poll with a timeout")

    def _start_late(self) -> None:
        now_ns = self._clock.now_ns()
        due = [read for start_ns, read in self._late if start_ns <= now_ns]
        self._late = [(start_ns, read) for start_ns, read in self._late if start_ns > now_ns]
        for read in due:
            submit_ns = read.submit_ns
            if self._inner.submit([read]) == 0:
                self._late.append((now_ns, read))
            read.submit_ns = submit_ns

    def _finish(self, completions: Sequence[Completion]) -> None:
        for completion in completions:
            read, kind = self._marked.pop(completion.key, (None, None))
            if read is not None and kind is FaultKind.REORDER:
                self._swapped.append(completion)
                continue
            if read is not None and completion.error is None:
                _spoil(read, kind, completion)
            self._done += [completion, *self._swapped]
            self._swapped.clear()

    def close(self) -> None:
        """Closes the inner reader; delayed and hanging reads are never submitted."""
        self._inner.close()
        for waiting in (self._late, self._hung, self._swapped, self._done):
            waiting.clear()
        self._marked.clear()


def _spoil(read: Read, kind: FaultKind | None, completion: Completion) -> None:
    content = np.frombuffer(read.into, dtype=np.uint8)
    need = read.num_bytes if read.need_bytes < 0 else read.need_bytes
    if kind is FaultKind.CORRUPT:
        content[need - 1] ^= 0xFF
        completion.error = read.check()
    elif kind is FaultKind.SHORT:
        content[need // 2 :] = 0
        completion.error = OSError(errno.EIO, f"short read: {need // 2} of {need} bytes at offset {read.offset}")
