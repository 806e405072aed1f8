"""Untrusted bytes on disk: reads that never run past a file's end and never allocate more than was asked for."""

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

from workbench.errors import BadInput
from workbench.units import MIB

READ_BYTES = 4 * MIB
"""Bytes of one read when a whole file is hashed or checked."""


class Region:
    """A file, or an inner part of it, opened for reading at offsets. Use as a context manager."""

    def __init__(self, path: Path) -> None:
        """Opens the whole of `path`. Raises BadInput when it is no readable regular file."""
        self.path = path
        self.start = 0
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            raise BadInput(f"can't read {path}: {error.strerror}") from None
        if not os.path.isfile(path):
            self.close()
            raise BadInput(f"can't read {path}: not a regular file")
        self.num_bytes = os.fstat(self._fd).st_size

    def narrow(self, start: int, num_bytes: int) -> None:
        """Narrows the region to `num_bytes` bytes from file offset `start`, which becomes offset 0."""
        self.start, self.num_bytes = start, num_bytes

    def read(self, offset: int, num_bytes: int) -> bytes:
        """Reads exactly `num_bytes` bytes at an offset. Raises BadInput when the region ends before them."""
        if offset + num_bytes > self.num_bytes:
            raise BadInput(f"{self.path}: truncated: {num_bytes} bytes at {offset} end behind its {self.num_bytes} bytes")
        try:
            content = os.pread(self._fd, num_bytes, self.start + offset)
        except OSError as error:
            raise BadInput(f"{self.path}: {num_bytes} bytes at {offset} can't be read: {error.strerror}") from None
        if len(content) != num_bytes:
            raise BadInput(f"{self.path}: truncated: only {len(content)} of {num_bytes} bytes at {offset} could be read")
        return content

    def chunks(self, start: int, end: int) -> Iterator[bytes]:
        """The bytes of `[start, end)`, in order, a few MiB at a time."""
        for offset in range(start, end, READ_BYTES):
            yield self.read(offset, min(READ_BYTES, end - offset))

    def check_zero(self, start: int, end: int, what: str) -> None:
        """Raises BadInput unless every byte of `[start, end)` is zero."""
        for chunk in self.chunks(start, end):
            if chunk.count(0) != len(chunk):
                raise BadInput(f"{self.path}: {what} must be zero (damaged, or written by a newer version)")

    def close(self) -> None:
        """Closes the file."""
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def file_sha256(path: Path, advance: Callable[[int], None] = lambda num_bytes: None) -> bytes:
    """SHA-256 of a whole file; `advance` is called with the bytes read."""
    digest = hashlib.sha256()
    with Region(path) as region:
        for chunk in region.chunks(0, region.num_bytes):
            digest.update(chunk)
            advance(len(chunk))
    return digest.digest()
