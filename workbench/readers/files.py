"""Open files of a reader, buffered or uncached, and page-aligned memory for them."""

import errno
import mmap
import os
import sys
from pathlib import Path

import numpy as np

from workbench.errors import BadInput, UnmetPrerequisite

_F_RDAHEAD, _F_NOCACHE = 45, 48
"""fcntl commands of macOS (`sys/fcntl.h`); Python's module names only the second, and only there."""


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
                f"{path}: its filesystem refuses uncached reads (O_DIRECT); read buffered, or move it to a disk"
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
    """Writable bytes that start on a page, zeroed."""
    return np.frombuffer(mmap.mmap(-1, max(num_bytes, 1)), dtype=np.uint8)[:num_bytes]
