"""How bytes move: a reader accepts reads and reports each completion once. It knows files, not records or pages."""

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
    """The bytes that were read differ from the stored ones."""


@dataclass(slots=True)
class Read:
    """Bytes `[offset, offset + num_bytes)` of a file, into memory.

    An uncached reader needs offset, length and memory aligned to pages. A window may run past the end of the file as long
    as the first `need_bytes` of it exist.
    """

    key: int
    """Identifier that the completion carries."""
    file: int
    """File index from `open_file`."""
    offset: int
    num_bytes: int
    into: Buffer
    """Writable bytes, exactly `num_bytes` long; the reader writes there until the read is completed."""
    queue: str = "expert"
    need_bytes: int = -1
    """Fewest bytes for a successful read; -1: all."""
    checksums: tuple[Checksum, ...] = ()
    """CRC-32s that the reader's own threads check, not the compute thread."""
    alone: bool = False
    """Never coalesced with an adjacent read, because its bytes are needed earlier."""
    submit_ns: int = 0
    """Submit time, set by the reader."""

    def check(self) -> ChecksumMismatch | None:
        """Compares the bytes of a complete read with its checksums: the error, or None when they are sound."""
        view = memoryview(self.into)  # type: ignore[arg-type]
        for checksum in self.checksums:
            if zlib.crc32(view[checksum.start : checksum.start + checksum.num_bytes]) != checksum.crc32:
                at = self.offset + checksum.start
                return ChecksumMismatch(errno.EIO, f"checksum differs in bytes {at}..{at + checksum.num_bytes} of the file")
        return None


@dataclass(slots=True)
class Completion:
    """The end of one read. Times are `time.monotonic_ns` (or the virtual clock's), taken by the thread that saw the read end."""

    key: int
    submit_ns: int
    ready_ns: int
    error: OSError | None = None
    check_ns: int = 0
    """Time spent on the read's checksums, before `ready_ns`."""
    together: int = 1
    """Number of reads in the same system call."""


class Reader(ABC):
    """Moves bytes from files into memory, many at a time. Used by one thread."""

    @abstractmethod
    def open_file(self, path: Path) -> int:
        """Opens a file for reading; its index goes into `Read.file`."""

    @abstractmethod
    def submit(self, reads: Sequence[Read]) -> int:
        """Submits a batch; returns how many of its first reads were accepted. A busy reader accepts none of the rest."""

    @abstractmethod
    def poll(self, timeout_s: float | None = 0.0, at_least: int = 1) -> list[Completion]:
        """Completions since the last call; waits for at least one (`timeout_s` None: without limit). Empty on a timeout.

        `at_least`: a hint that the caller can use no fewer completions, so that a reader may sleep until that many are ready.
        Returns at once when nothing is in flight.
        """

    @abstractmethod
    def close(self) -> None:
        """Ends all reads, threads and files; no read writes afterwards. May be called twice."""

    @property
    @abstractmethod
    def in_flight(self) -> int:
        """Reads accepted and not yet reported by `poll`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
