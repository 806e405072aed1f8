"""Measures one cell of Gate A: prepares the page cache, keeps reads in flight for a while, returns rates and times."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from workbench.errors import UnmetPrerequisite
from workbench.gates.a_storage.cells import BUFFERED, MMAP, PREAD, URING, Cell, Layout, Windows
from workbench.gates.shared.load import Load, running
from workbench.hardware import cached_fraction, drop_from_page_cache
from workbench.readers import (
    Completion,
    MmapReader,
    PreadConfig,
    PreadReader,
    Read,
    Reader,
    UringConfig,
    UringReader,
    aligned_buffer,
    quick_switching,
)  # fmt: skip
from workbench.units import GB, MIB, NS_PER_S, NS_PER_US

_REGION_BYTES = 512 * MIB
_WARM_BYTES = 64 * MIB
_LANE = "expert"
_ALL_S = 600.0
"""Time limit of a run that reads the whole file, seconds: longer than any disk takes."""
_MOST_READS_PER_S = 300_000
"""Windows prepared per second of a run: more reads than any cell makes."""


def open_kind(kind: str, depth: int, coalesce_bytes: int = 0) -> Reader:
    """A reader of a kind that keeps up to `depth` reads at the disk. Raises UnmetPrerequisite where this machine lacks it."""
    if kind == MMAP:
        return MmapReader()
    if kind == URING:
        return UringReader(UringConfig(depth={_LANE: depth}, coalesce_bytes=coalesce_bytes))
    return PreadReader(PreadConfig(uncached=kind != BUFFERED, threads={_LANE: depth}, coalesce_bytes=coalesce_bytes))


def missing_readers(path: Path) -> dict[str, str]:
    """Names of uncached readers that can't read this file, each with the reason."""
    reasons = {}
    for kind in (URING, PREAD):
        try:
            with open_kind(kind, 1) as reader:
                reader.open_file(path)
        except UnmetPrerequisite as error:
            reasons[kind] = str(error)
    return reasons


def switching(kind: str) -> AbstractContextManager[None]:
    """A context for a reader of a kind: threads run under quick switching, as in a session; the control does not."""
    return quick_switching() if kind in (PREAD, BUFFERED) else nullcontext()


@dataclass(frozen=True, kw_only=True)
class Times:
    """Raw times of the reads of one run, in the order they were seen."""

    start_ns: int
    end_ns: int
    """Time at which the last read completed."""
    to_ready_ns: np.ndarray
    """Durations from submit to completion."""
    to_seen_ns: np.ndarray
    """Durations from completion until `poll` returned it."""
    physical_bytes: int
    logical_bytes: int
    cpu_ns: int
    """CPU time of this process, kernel included."""

    @property
    def seconds(self) -> float:
        """Duration from the first submit to the last completion."""
        return (self.end_ns - self.start_ns) / NS_PER_S


def drive(reader: Reader, file: int, windows: Windows, memory: np.ndarray, depth: int, seconds: float) -> Times:
    """Keeps `depth` reads in flight until the time is over (at least three each) or all windows are read.

    Reads are prepared before and times computed after the loop, so that between two polls it does little but submit the next.

    Args:
        reader: an open reader.
        file: index of the file in the reader.
        windows: reads to submit, in order.
        memory: page-aligned bytes, at least `depth` of the largest window.
        depth: reads in flight.
        seconds: time after which no more reads are submitted.

    Raises the error of a failed read.
    """
    places = _places(windows, memory, depth)
    columns = (windows.offsets.tolist(), windows.num_bytes.tolist(), windows.need_bytes.tolist())
    waiting = [
        Read(0, file, offset, num_bytes, places[num_bytes][0], _LANE, need)
        for offset, num_bytes, need in zip(*columns, strict=True)
    ]
    seen: list[tuple[int, list[Completion]]] = []
    issued = finished = 0
    free: list[int] = list(range(depth))
    cpu_ns = time.process_time_ns()
    start_ns = now_ns = time.monotonic_ns()
    last_ns = start_ns + int(seconds * NS_PER_S)
    while True:
        if now_ns < last_ns or finished < 3 * depth:
            batch = waiting[issued : issued + len(free)]
            for read, slot in zip(batch, free, strict=False):
                read.key, read.into = slot, places[read.num_bytes][slot]
            reader.submit(batch)
            issued += len(batch)
        if finished == issued:
            break
        done = reader.poll(None)
        now_ns = time.monotonic_ns()
        seen.append((now_ns, done))
        finished += len(done)
        free = [completion.key for completion in done]
    return _times(windows, issued, seen, start_ns, time.process_time_ns() - cpu_ns)


def _places(windows: Windows, memory: np.ndarray, depth: int) -> dict[int, list[np.ndarray]]:
    """Views of the memory for each place in the queue, as long as a window."""
    lengths = sorted(set(windows.num_bytes.tolist()))
    slots = memory[: depth * lengths[-1]].reshape(depth, -1)
    return {length: [slot[:length] for slot in slots] for length in lengths}


def _times(windows: Windows, issued: int, seen: Sequence[tuple[int, Sequence[Completion]]], start_ns: int, cpu_ns: int) -> Times:
    completions = [completion for _, done in seen for completion in done]
    if failed := next((completion.error for completion in completions if completion.error is not None), None):
        raise failed
    ready_ns = np.array([completion.ready_ns for completion in completions])
    return Times(
        start_ns=start_ns,
        end_ns=int(ready_ns.max()),
        to_ready_ns=ready_ns - np.array([completion.submit_ns for completion in completions]),
        to_seen_ns=np.repeat([now_ns for now_ns, _ in seen], [len(done) for _, done in seen]) - ready_ns,
        physical_bytes=int(windows.num_bytes[:issued].sum()),
        logical_bytes=int(windows.logical_bytes[:issued].sum()),
        cpu_ns=cpu_ns,
    )


@dataclass(kw_only=True)
class Probe:
    """A probe file and memory to read into; measures each cell on the next part of the file."""

    path: Path
    layout: Layout
    memory: np.ndarray
    rng: np.random.Generator
    _turn: int = 0

    @classmethod
    def on(cls, path: Path, layout: Layout, in_flight_bytes: int, seed: int) -> "Probe":
        """A probe whose memory is touched before any read is timed."""
        memory = aligned_buffer(in_flight_bytes)
        memory[::4096] = 1
        return cls(path=path, layout=layout, memory=memory, rng=np.random.default_rng(seed))

    def measure(self, cell: Cell, seconds: float) -> dict[str, Any]:
        """A row of a cell: bytes, times, share of its part cached before the first read, the load's rates alone and at once."""
        return self._run(cell, *self._region(cell), seconds)

    def read_all(self, cell: Cell) -> dict[str, Any]:
        """A row, as of `measure`, of a cold cell that reads the whole file once, in random order."""
        return self._run(cell, 0, self.path.stat().st_size, _ALL_S)

    def _run(self, cell: Cell, start: int, num_bytes: int, seconds: float) -> dict[str, Any]:
        most = int(_MOST_READS_PER_S * seconds) + 4 * cell.depth
        windows = self.layout.windows(cell.size, start, num_bytes, self.rng).first(most)
        cached = self._prepare(cell, start, num_bytes)
        with running(cell.beside) as load, switching(cell.reader), open_kind(cell.reader, cell.depth) as reader:
            file = reader.open_file(self.path)
            alone = load.rate_for(seconds) if load else None
            beside = _meter(load)
            times = drive(reader, file, windows, self.memory, cell.depth, seconds)
            beside_per_s = beside()
        cpu_us = times.cpu_ns / NS_PER_US / len(times.to_ready_ns) if load is None else None
        return {
            **vars(cell),
            "cached_before": cached,
            **_figures(times),
            "cpu_us_per_read": cpu_us,
            "load_alone_per_s": alone,
            "load_beside_per_s": beside_per_s,
        }

    def timed_pass(self, windows: Windows, reader_kind: str, depth: int, coalesce_bytes: int) -> tuple[float, float]:
        """Seconds to read exactly these windows in one batch, cold, and the share of their part that memory held before."""
        drop_from_page_cache(self.path)
        low, high = int(windows.offsets.min()), int((windows.offsets + windows.need_bytes).max())
        cached = cached_fraction(self.path, low, high - low)
        slots = self._spread(windows)
        reads = [
            Read(key, 0, offset, num_bytes, into, _LANE, need)
            for key, (offset, num_bytes, need, into) in enumerate(
                zip(windows.offsets.tolist(), windows.num_bytes.tolist(), windows.need_bytes.tolist(), slots, strict=True)
            )
        ]
        with switching(reader_kind), open_kind(reader_kind, depth, coalesce_bytes) as reader:
            reader.open_file(self.path)
            start_ns = end_ns = time.monotonic_ns()
            reader.submit(reads)
            while reader.in_flight:
                for completion in reader.poll(None):
                    if completion.error is not None:
                        raise completion.error
                    end_ns = max(end_ns, completion.ready_ns)
        return (end_ns - start_ns) / NS_PER_S, cached

    def _spread(self, windows: Windows) -> list[np.ndarray]:
        """Memory for each window; windows share memory when not all of them fit, since the bytes are never used."""
        longest = int(windows.num_bytes.max())
        slots = self.memory[: len(self.memory) // longest * longest].reshape(-1, longest)
        return [slots[number % len(slots), :length] for number, length in enumerate(windows.num_bytes.tolist())]

    def part(self, num_bytes: int) -> int:
        """Start of the next part of the file of this size, a multiple of the page size."""
        count = max(1, self.path.stat().st_size // max(num_bytes, 1))
        self._turn += 1
        start = self._turn % count * num_bytes
        return start - start % MIB

    def _region(self, cell: Cell) -> tuple[int, int]:
        size = self.path.stat().st_size
        if cell.cache == "warm":
            return 0, min(size, _WARM_BYTES)
        num_bytes = min(size, _REGION_BYTES)
        return self.part(num_bytes), num_bytes

    def _prepare(self, cell: Cell, start: int, num_bytes: int) -> float:
        """Drops or fills the page cache for the cell; returns the share of the part that is cached, by `mincore`."""
        if cell.cache == "cold":
            drop_from_page_cache(self.path)
        else:
            with self.path.open("rb", buffering=0) as file:
                file.seek(start)
                for _ in range(0, num_bytes, len(self.memory)):
                    file.readinto(self.memory[: min(num_bytes, len(self.memory))].data)
        return cached_fraction(self.path, start, num_bytes)


def _meter(load: Load | None) -> Callable[[], float | None]:
    if load is None:
        return lambda: None
    steps, start_ns = load.steps, time.monotonic_ns()
    return lambda: load.rate_since(steps, start_ns)


def _figures(times: Times) -> dict[str, Any]:
    ready, seen = times.to_ready_ns / NS_PER_US, times.to_seen_ns / NS_PER_US
    p50, p95, p99 = np.percentile(ready, [50, 95, 99])
    return {
        "start_ns": times.start_ns,
        "seconds": times.seconds,
        "reads": len(ready),
        "logical_bytes": times.logical_bytes,
        "physical_bytes": times.physical_bytes,
        "bandwidth_gbps": times.physical_bytes / times.seconds / GB,
        "useful_gbps": times.logical_bytes / times.seconds / GB,
        "reads_per_s": len(ready) / times.seconds,
        "p50_us": float(p50),
        "p95_us": float(p95),
        "p99_us": float(p99),
        "ready_to_seen_p50_us": float(np.median(seen)),
        "submit_to_seen_p50_us": float(np.median(ready + seen)),
    }
