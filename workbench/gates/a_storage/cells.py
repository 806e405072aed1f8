"""Cells of Gate A (size of reads, queue depth, cold or warm cache, load beside the reads) and their windows. Arithmetic only."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from workbench.geometry import DOWN, Geometry
from workbench.units import KIB, MIB, PAGE_BYTES

Cache = Literal["cold", "warm"]
Beside = Literal["idle", "mlx", "python"]

URING, PREAD, BUFFERED, MMAP = "uring", "pread", "buffered", "mmap"
SLOW_SWITCH = "pread, slow switch"
"""Control: threads at the interpreter's own switch interval (5 ms)."""
UNCACHED = (URING, PREAD)
"""Readers that can be recommended, the one nearest to the disk first."""
RECORD, GATE_UP, DOWN_SIZE, PAGE, PAGE_16K, MEGABYTE, SEQUENTIAL = (
    "record", "gate+up", "down", "page 4 KiB", "page 16 KiB", "1 MiB", "sequential",
)  # fmt: skip
SPLIT = "gate+up, down"
"""Whole records read as two extents each."""
SIZES = (PAGE, PAGE_16K, DOWN_SIZE, MEGABYTE, GATE_UP, RECORD, SEQUENTIAL)
_SEQUENTIAL_BYTES = 8 * MIB


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One combination of reader, read size, queue depth, cache state and load that is measured."""

    reader: str
    size: str
    depth: int
    """Reads in flight."""
    cache: Cache = "cold"
    beside: Beside = "idle"

    @property
    def label(self) -> str:
        """The cell for people."""
        return f"{self.reader}, {self.size}, depth {self.depth}, {self.cache}, {self.beside}"


@dataclass(frozen=True, kw_only=True)
class Windows:
    """Reads to submit, in order: page-aligned windows that cover the requested bytes."""

    offsets: np.ndarray
    num_bytes: np.ndarray
    need_bytes: np.ndarray
    """Bytes from a window's start to the last requested byte."""
    logical_bytes: np.ndarray

    def first(self, count: int) -> "Windows":
        """The first `count` windows."""
        return Windows(**{name: column[:count] for name, column in vars(self).items()})


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Offsets of reads of each size, as in a profile's store: records back to back, pages aligned to pages."""

    record_bytes: int
    down_bytes: int
    num_experts: int

    @classmethod
    def of(cls, geometry: Geometry) -> "Layout":
        """The layout of a profile's store."""
        return cls(
            record_bytes=geometry.record_bytes, down_bytes=geometry.component_bytes(DOWN), num_experts=geometry.num_experts
        )

    def read_bytes(self, size: str) -> int:
        """Bytes that one read of a size requests."""
        return self._extents(size)[0][1]

    def window_bytes(self, size: str) -> int:
        """Largest window of a read of this size."""
        num_bytes = max(length for _, length in self._extents(size))
        stride = self._stride(size)
        return num_bytes if stride % PAGE_BYTES == 0 and num_bytes % PAGE_BYTES == 0 else num_bytes + 2 * PAGE_BYTES

    def most_depth(self, size: str, in_flight_bytes: int) -> int:
        """Deepest queue that the memory for reads in flight allows; at least 1."""
        return max(1, in_flight_bytes // self.window_bytes(size))

    def windows(self, size: str, start: int, num_bytes: int, rng: np.random.Generator) -> Windows:
        """All windows of a size within a part of the file: in random order, or one after the other when sequential.

        `start` is a multiple of the page size.
        """
        count = num_bytes // self._stride(size)
        order = np.arange(count) if size == SEQUENTIAL else rng.permutation(count)
        return self.windows_of(size, start, order)

    def windows_of(self, size: str, start: int, order: Sequence[int] | np.ndarray) -> Windows:
        """Windows of the items `order` from `start` on; each item has as many windows as the size has extents."""
        extents = self._extents(size)
        first = start + np.asarray(order, dtype=np.int64)[:, None] * self._stride(size)
        low = (first + np.array([offset for offset, _ in extents])).ravel()
        lengths = np.tile([length for _, length in extents], len(order))
        offsets = low - low % PAGE_BYTES
        end = low + lengths
        return Windows(
            offsets=offsets,
            num_bytes=-(-end // PAGE_BYTES) * PAGE_BYTES - offsets,
            need_bytes=end - offsets,
            logical_bytes=lengths,
        )

    def extent(self, start: int, num_bytes: int) -> Windows:
        """One extent of the file from `start` (a multiple of the page size) on, cut into large reads."""
        offsets = np.arange(start, start + num_bytes, _SEQUENTIAL_BYTES)
        lengths = np.minimum(start + num_bytes - offsets, _SEQUENTIAL_BYTES)
        return Windows(
            offsets=offsets, num_bytes=-(-lengths // PAGE_BYTES) * PAGE_BYTES, need_bytes=lengths, logical_bytes=lengths
        )

    def _stride(self, size: str) -> int:
        fixed = {PAGE: 4 * KIB, PAGE_16K: 16 * KIB, MEGABYTE: MIB, SEQUENTIAL: _SEQUENTIAL_BYTES}
        return fixed.get(size, self.record_bytes)

    def _extents(self, size: str) -> list[tuple[int, int]]:
        """`(offset, bytes)` of each extent within an item of a size."""
        split = self.record_bytes - self.down_bytes
        parts = {GATE_UP: [(0, split)], DOWN_SIZE: [(split, self.down_bytes)], SPLIT: [(0, split), (split, self.down_bytes)]}
        return parts.get(size, [(0, self._stride(size))])


def grid(readers: Sequence[str], sizes: Sequence[str], depths: Sequence[int], layout: Layout, in_flight_bytes: int) -> list[Cell]:
    """Cold, idle cells: every reader at every size and at every depth that fits into memory; mapped memory has no depth."""
    return [
        Cell(reader=reader, size=size, depth=depth)
        for reader in readers
        for size in sizes
        for depth in ((1,) if reader == MMAP else depths)
        if depth <= layout.most_depth(size, in_flight_bytes)
    ]


def between(low: int, high: int, most: int) -> list[int]:
    """Depths from half of `low` to the double of `high`, each the double of the one before, at least 1 and at most `most`."""
    depths = [max(1, low // 2)]
    while depths[-1] < min(2 * high, most):
        depths.append(min(2 * depths[-1], most))
    return depths
