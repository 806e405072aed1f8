"""What readers of real files share: open files, buffered or uncached, aligned memory, runs of adjacent reads."""

import errno
import mmap
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from workbench.errors import BadInput, UnmetPrerequisite
from workbench.hardware import prefer_huge_pages
from workbench.readers.base import Completion, Read
from workbench.units import PAGE_BYTES

_F_RDAHEAD, _F_NOCACHE = 45, 48
"""fcntl commands of macOS (`sys/fcntl.h`); Python's `fcntl` names only `F_NOCACHE`, and only on macOS."""


class FileTable:
    """Files by index. All of them are closed together."""

    def __init__(self, *, uncached: bool) -> None:
        self.uncached = uncached
        self._descriptors: list[int] = []

    def open(self, path: Path) -> int:
        """Opens a file for reading; its index. Raises BadInput when it can't be opened, UnmetPrerequisite when not uncached."""
        try:
            descriptor = _open_uncached(path) if self.uncached else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise BadInput(f"{path} can't be opened: {error.strerror}") from None
        self._descriptors.append(descriptor)
        return len(self._descriptors) - 1

    def descriptor(self, file: int) -> int:
        """File descriptor of an index."""
        return self._descriptors[file]

    def close(self) -> None:
        """Closes all files."""
        while self._descriptors:
            os.close(self._descriptors.pop())


def _open_uncached(path: Path) -> int:
    if sys.platform == "darwin":
        return _open_nocache(path)
    flags = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_DIRECT", 0)
    try:
        return os.open(path, flags)
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise UnmetPrerequisite(
                f"{path}: its filesystem refuses uncached reads (O_DIRECT); read buffered, or move the file to a disk"
            ) from None
        raise


def _open_nocache(path: Path) -> int:
    import fcntl

    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.fcntl(descriptor, _F_NOCACHE, 1)
        fcntl.fcntl(descriptor, _F_RDAHEAD, 0)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def aligned_buffer(num_bytes: int) -> np.ndarray:
    """Writable bytes that start on a page, zeroed; on huge pages where the system has them, like the runtime's slots."""
    # not shared: Linux keeps shared memory on small pages
    memory = np.frombuffer(mmap.mmap(-1, max(num_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANON), dtype=np.uint8)
    prefer_huge_pages(memory.ctypes.data, len(memory))
    return memory[:num_bytes]


MAX_RUN = 512
"""Most reads that one call carries; kernels accept 1024 (`IOV_MAX`)."""


def runs_of(reads: Sequence[Read], limit_bytes: int) -> list[list[Read]]:
    """Reads in their order as runs: adjacent reads of a file form one run of up to `limit_bytes`."""
    runs: list[list[Read]] = []
    end = num_bytes = -1
    for read in reads:
        num_bytes += read.num_bytes
        if read.offset == end and num_bytes <= limit_bytes and _alike(runs[-1], read):
            runs[-1].append(read)
        else:
            runs.append([read])
            num_bytes = read.num_bytes
        end = read.offset + read.num_bytes
    return runs


def _alike(run: Sequence[Read], read: Read) -> bool:
    first = run[0]
    return first.file == read.file and first.queue == read.queue and not (first.alone or read.alone) and len(run) < MAX_RUN


def outcome(run: Sequence[Read], got: int, error: OSError | None) -> list[Completion]:
    """Completions of a run of which the first `got` bytes were read; checks their CRC-32s."""
    done = []
    for read in run:
        arrived_ns = ready_ns = time.monotonic_ns()
        need = read.num_bytes if read.need_bytes < 0 else read.need_bytes
        wrong = None if got >= need else error or _short(read, max(got, 0), need)
        if read.checksums and wrong is None:
            wrong = read.check()
            ready_ns = time.monotonic_ns()
        done.append(Completion(read.key, read.submit_ns, ready_ns, wrong, ready_ns - arrived_ns, len(run)))
        got -= read.num_bytes
    return done


def _short(read: Read, got: int, need: int) -> OSError:
    return OSError(errno.EIO, f"short read: {got} of {need} bytes at offset {read.offset}; the file ends there")


def failure(error: OSError, read: Read) -> OSError:
    """The error of a read; names the remedy where the cause is known."""
    if error.errno == errno.EINVAL and (read.offset % PAGE_BYTES or read.num_bytes % PAGE_BYTES):
        return OSError(errno.EINVAL, f"an uncached read must cover whole pages, got {read.num_bytes} bytes at {read.offset}")
    return error
