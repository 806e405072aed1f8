"""The slow control: copies from a mapped file. Every page that is not in memory costs the calling thread a page fault."""

import mmap
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from workbench.errors import BadInput
from workbench.readers.base import Completion, Read, Reader
from workbench.readers.files import outcome


class MmapReader(Reader):
    """Copies at `submit`, in the calling thread, one read after the other."""

    def __init__(self) -> None:
        self._maps: list[mmap.mmap] = []
        self._done: list[Completion] = []

    @property
    def in_flight(self) -> int:
        """Reads copied and not yet reported by `poll`."""
        return len(self._done)

    def open_file(self, path: Path) -> int:
        """Maps a file. Raises BadInput when it can't be opened or is empty."""
        try:
            with open(path, "rb") as file:
                self._maps.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except (OSError, ValueError) as error:
            raise BadInput(f"{path} can't be mapped: {error}") from None
        return len(self._maps) - 1

    def submit(self, reads: Sequence[Read]) -> int:
        """Copies all reads before it returns."""
        for read in reads:
            read.submit_ns = time.monotonic_ns()
            source = np.frombuffer(self._maps[read.file], dtype=np.uint8)[read.offset : read.offset + read.num_bytes]
            np.frombuffer(read.into, dtype=np.uint8)[: len(source)] = source
            self._done += outcome([read], len(source), None)
        return len(reads)

    def poll(self, timeout_s: float | None = 0.0, at_least: int = 1) -> list[Completion]:
        """Completions of all reads copied since the last call."""
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        """Unmaps all files."""
        while self._maps:
            self._maps.pop().close()
        self._done.clear()
