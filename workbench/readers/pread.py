"""Reads by a pool of threads over `os.preadv`, buffered or uncached. Every queue has threads of its own."""

import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from workbench.readers.base import Completion, Read, Reader
from workbench.readers.files import FileTable, failure, outcome, runs_of


@dataclass(frozen=True, kw_only=True)
class PreadConfig:
    """Settings of a `PreadReader`."""

    uncached: bool = False
    """Bypass the page cache: `O_DIRECT` on Linux, `F_NOCACHE` on macOS."""
    threads: Mapping[str, int] = field(default_factory=lambda: {"expert": 8, "ple": 8, "layer": 2})
    """Threads, hence reads in flight, of each queue."""
    max_queued: int = 1 << 20
    """Most reads accepted and not yet reported; beyond this number the reader is busy."""
    coalesce_bytes: int = 4 << 20
    """Largest run of adjacent reads in one call; 0: no coalescing."""

    def __post_init__(self) -> None:
        if not self.threads or min(self.threads.values()) < 1:
            raise ValueError(f"each queue needs at least one thread, got {dict(self.threads)}")


class _Queue:
    """Waiting runs of a queue; `ready` wakes its threads."""

    def __init__(self) -> None:
        self.runs: deque[list[Read]] = deque()
        self.ready = threading.Condition()
        self.closed = False


class PreadReader(Reader):
    """Thread pool over `os.preadv`, which releases the GIL while the kernel reads."""

    def __init__(self, config: PreadConfig | None = None) -> None:
        self.config = config or PreadConfig()
        self._files = FileTable(uncached=self.config.uncached)
        self._queues = {name: _Queue() for name in self.config.threads}
        self._done: deque[Completion] = deque()
        self._seen = threading.Condition()
        self._in_flight = 0
        self._threads = [
            threading.Thread(target=self._serve, args=(queue,), name=f"pread-{name}-{i}", daemon=True)
            for name, queue in self._queues.items()
            for i in range(self.config.threads[name])
        ]
        for thread in self._threads:
            thread.start()

    @property
    def in_flight(self) -> int:
        """Reads accepted and not yet reported by `poll`."""
        return self._in_flight

    def open_file(self, path: Path) -> int:
        """Opens a file; raises UnmetPrerequisite where its filesystem can't be read uncached."""
        return self._files.open(path)

    def submit(self, reads: Sequence[Read]) -> int:
        """Adds a batch to the queues of its reads."""
        taken = reads[: max(0, self.config.max_queued - self._in_flight)]
        now_ns = time.monotonic_ns()
        for read in taken:
            read.submit_ns = now_ns
        runs = runs_of(taken, self.config.coalesce_bytes)
        queues = [self._queues[run[0].queue] for run in runs]
        for queue, run in zip(queues, runs, strict=True):
            with queue.ready:
                queue.runs.append(run)
                queue.ready.notify()
        self._in_flight += len(taken)
        return len(taken)

    def poll(self, timeout_s: float | None = 0.0, at_least: int = 1) -> list[Completion]:
        """Completions since the last call."""
        with self._seen:
            if not self._done and self._in_flight and timeout_s != 0.0:
                self._seen.wait_for(lambda: self._done, timeout_s)
            done = list(self._done)
            self._done.clear()
        self._in_flight -= len(done)
        return done

    def close(self) -> None:
        """Drops queued reads, waits for those at the kernel, ends threads, closes files."""
        for queue in self._queues.values():
            with queue.ready:
                queue.closed = True
                queue.runs.clear()
                queue.ready.notify_all()
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        self._done.clear()
        self._in_flight = 0
        self._files.close()

    def _serve(self, queue: _Queue) -> None:
        while True:
            with queue.ready:
                queue.ready.wait_for(lambda: queue.runs or queue.closed)
                if queue.closed:
                    return
                run = queue.runs.popleft()
            done = self._read_run(run)
            with self._seen:
                self._done.extend(done)
                self._seen.notify()

    def _read_run(self, run: list[Read]) -> list[Completion]:
        first = run[0]
        error: OSError | None = None
        got = 0
        try:
            got = _read_fully(self._files.descriptor(first.file), first.offset, [read.into for read in run])
        except OSError as cause:
            error = failure(cause, first)
        return outcome(run, got, error)


def _read_fully(descriptor: int, offset: int, into: Sequence[object]) -> int:
    """Bytes read into the buffers, in order, until they are full or the file ends."""
    views = [memoryview(buffer).cast("B") for buffer in into]  # type: ignore[arg-type]
    wanted = sum(len(view) for view in views)
    got = 0
    while got < wanted:
        count = os.preadv(descriptor, views, offset + got)
        got += count
        if not count or got == wanted or got % _BLOCK:
            # an unaligned count means that the file has ended; O_DIRECT would refuse a read from there
            break
        views = _after(views, count)
    return got


_BLOCK = 512


def _after(views: list[memoryview], count: int) -> list[memoryview]:
    while views and count >= len(views[0]):
        count -= len(views[0])
        views = views[1:]
    return [views[0][count:], *views[1:]] if views else []
