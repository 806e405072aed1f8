"""Wraps any reader and reports its reads in a random order, on which no result may depend."""

import random
from collections.abc import Sequence
from pathlib import Path

from workbench.readers.base import Completion, Read, Reader


class ShuffledReader(Reader):
    """Waits for all reads in flight and reports one of them per poll, chosen at random; a poll with timeout 0 may report none."""

    def __init__(self, inner: Reader, seed: int) -> None:
        self._inner = inner
        self._random = random.Random(seed)
        self._held: list[Completion] = []

    @property
    def in_flight(self) -> int:
        """Reads accepted and not yet reported by `poll`."""
        return self._inner.in_flight + len(self._held)

    def open_file(self, path: Path) -> int:
        """Opens a file in the inner reader."""
        return self._inner.open_file(path)

    def submit(self, reads: Sequence[Read]) -> int:
        """Submits a batch to the inner reader."""
        return self._inner.submit(reads)

    def poll(self, timeout_s: float | None = 0.0, at_least: int = 1) -> list[Completion]:
        """One completion; with timeout 0, by chance none."""
        if timeout_s == 0.0 and self._random.random() < 0.5:
            return []
        while self._inner.in_flight:
            self._held += self._inner.poll(None)
        if not self._held:
            return []
        return [self._held.pop(self._random.randrange(len(self._held)))]

    def close(self) -> None:
        """Closes the inner reader."""
        self._inner.close()
        self._held.clear()
