"""How bytes move: a reader takes reads, says how many it took, and later reports each one once. It knows files, not meaning."""

import errno
import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

Buffer = memoryview | np.ndarray
"""Memory that a reader writes into."""


@dataclass(frozen=True, slots=True)
class Checksum:
    """CRC-32 that bytes `[start, start + num_bytes)` of a read's memory must have."""

    start: int
    num_bytes: int
    crc32: int


class ChecksumMismatch(OSError):
    """The bytes that came are not those that were stored."""


@dataclass(slots=True)
class Read:
    """Bytes `[offset, offset + num_bytes)` of a file, into memory.

    An uncached reader needs offset, length and memory aligned to pages. A window may run past the end of the file as long
    as the first `need_bytes` of it exist.
    """

    key: int
    """Named in the completion."""
    file: int
    """As `open_file` returned it."""
    offset: int
    num_bytes: int
    into: Buffer
    """Writable bytes, exactly `num_bytes` long; the reader writes there until the read is completed."""
    queue: str = "expert"
    need_bytes: int = -1
    """Fewest bytes that make it good; -1: all."""
    checksums: tuple[Checksum, ...] = ()
    """Checked where the bytes arrive, so that their cost stays off the thread that computes."""
    alone: bool = False
    """Never one call with a neighbour: it is wanted before the neighbour's bytes."""
    submit_ns: int = 0
    """Set by the reader that takes it."""

    def check(self) -> ChecksumMismatch | None:
        """What is wrong with the bytes that came, if anything is."""
        view = memoryview(self.into)  # type: ignore[arg-type]
        for checksum in self.checksums:
            if zlib.crc32(view[checksum.start : checksum.start + checksum.num_bytes]) != checksum.crc32:
                at = self.offset + checksum.start
                return ChecksumMismatch(errno.EIO, f"checksum differs in bytes {at}..{at + checksum.num_bytes} of the file")
        return None


@dataclass(slots=True)
class Completion:
    """The end of one read. Times are `time.monotonic_ns` (or the virtual clock's), taken where the bytes arrived."""

    key: int
    submit_ns: int
    ready_ns: int
    error: OSError | None = None
    check_ns: int = 0
    """Time that its checksums took, ended before `ready_ns`."""
    together: int = 1
    """Reads that its call carried."""


class Reader(ABC):
    """Moves bytes from files into memory, many at a time. Used by one thread."""

    @abstractmethod
    def open_file(self, path: Path) -> int:
        """Opens a file for reading; its index goes into `Read.file`."""

    @abstractmethod
    def submit(self, reads: Sequence[Read]) -> int:
        """Takes a batch: how many of the first were taken. Fewer than all means busy; none were lost."""

    @abstractmethod
    def poll(self, timeout_s: float | None = 0.0, at_least: int = 1) -> list[Completion]:
        """Completions since the last call; waits for at least one (None: for ever). Empty when none came in time.

        `at_least`: a hint that nothing can be done with fewer, so that a reader may sleep until so many have come.
        Returns at once when nothing is in flight.
        """

    @abstractmethod
    def close(self) -> None:
        """Ends all reads (none writes afterwards), threads and files. May be called twice."""

    @property
    @abstractmethod
    def in_flight(self) -> int:
        """Reads taken and not yet reported by `poll`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
