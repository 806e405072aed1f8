"""A reader that moves no bytes: a run with it shows the cost of everything except reading."""

import time
from collections.abc import Sequence
from pathlib import Path

from workbench.readers.base import Completion, Read, Reader


class NullReader(Reader):
    """Completes every read at the next poll; memory and files are not touched."""

    def __init__(self) -> None:
        self._taken: list[Read] = []
        self._num_files = 0

    @property
    def in_flight(self) -> int:
        """Reads accepted and not yet reported by `poll`."""
        return len(self._taken)

    def open_file(self, path: Path) -> int:
        """An index; the file need not exist."""
        self._num_files += 1
        return self._num_files - 1

    def submit(self, reads: Sequence[Read]) -> int:
        """Accepts every read."""
        now_ns = time.monotonic_ns()
        for read in reads:
            read.submit_ns = now_ns
        self._taken.extend(reads)
        return len(reads)

    def poll(self, timeout_s: float | None = 0.0, at_least: int = 1) -> list[Completion]:
        """Completions of all reads accepted since the last call."""
        now_ns = time.monotonic_ns()
        done = [Completion(read.key, read.submit_ns, now_ns) for read in self._taken]
        self._taken.clear()
        return done

    def close(self) -> None:
        """Drops accepted reads."""
        self._taken.clear()
