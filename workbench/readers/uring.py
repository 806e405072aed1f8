"""Reads on Linux by io_uring: thousands of reads a system call, no pool of threads, no GIL between disk and bytes.

The compute thread submits and polls. A watcher thread sleeps in the kernel; between polls it collects completions, stamps their
time and keeps the queues full. Beside a busy Python thread a 4 KiB read takes as long as alone, because a poll whose read
completes within `spin_us` never releases the GIL.
"""

import ctypes
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.errors import UnmetPrerequisite
from workbench.readers.base import Completion, Read, Reader
from workbench.readers.checks import Checker
from workbench.readers.files import FileTable, failure, outcome, runs_of
from workbench.readers.ring import ASYNC, LAST, OP_READ, OP_READV, Ring, chained, entry, ring_refusal
from workbench.units import KIB, MIB, NS_PER_MS, NS_PER_S, NS_PER_US

_SIGNAL = 0
"""Token of the read that waits for the checker; reads count from 1."""
_KEEP_GIL_BYTES = MIB
"""Largest submission made while holding the GIL: the kernel pins its pages in about 0.1 ms."""
_CHECK_HERE_BYTES = 64 * KIB
"""Largest run checked by the thread that polls (20 us); larger runs are checked by the checker's threads."""
_COPY_HERE_BYTES = 256 * KIB
"""Largest buffered read that the submitting thread copies from the page cache (30 us); larger ones go to kernel workers."""
_BLOCK = 64
"""Reads whose ring entries are made together, adjacent ones coalesced; also the most completions that one poll sleeps for."""
_CHAIN = 16
"""Most small reads in one kernel chain, where each read starts at the end of the one before: the kernel refills its own queue."""
_CHAIN_BYTES = 64 * KIB
"""Largest read in a chain; larger reads last long enough for Python to refill the queue."""
_MOST_ENTRIES = 16_384
"""Half of what Linux allows (`IORING_MAX_ENTRIES`)."""
_RETRY_NS = NS_PER_MS
"""Delay before entries are submitted again that the kernel had no memory for."""
_WATCH_S = 3e-4
"""Time that the watcher waits for a poll in progress; timestamps taken just after a poll are late by at most this."""


@dataclass(frozen=True, kw_only=True)
class UringConfig:
    """Settings of a `UringReader`."""

    depth: Mapping[str, int] = field(default_factory=lambda: {"expert": 16, "ple": 256, "layer": 4})
    """Depth at the kernel by queue; further reads wait in the reader."""
    uncached: bool = True
    """Bypass the page cache. Small buffered reads of cached pages complete within `submit`, which suits emulated disks."""
    max_queued: int = 1 << 20
    """Most reads accepted and not yet reported; beyond this number the reader is busy."""
    coalesce_bytes: int = 4 * MIB
    """Largest read made of adjacent reads of one file; 0: no coalescing."""
    spin_us: int = 100
    """Time that a poll spins before it sleeps, microseconds."""
    check_threads: int = 2
    """Threads that check the CRC-32s of large reads."""
    watch: bool = True
    """Whether a watcher thread timestamps completions and refills the queue between polls."""

    def __post_init__(self) -> None:
        if not self.depth or min(self.depth.values()) < 1 or sum(self.depth.values()) > _MOST_ENTRIES:
            raise ValueError(f"each queue needs a depth of at least 1, all together {_MOST_ENTRIES}, got {dict(self.depth)}")


class _Queue:
    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.waiting: deque[Read] = deque()
        """Accepted reads without a ring entry: thousands of entries at once would burden the garbage collector."""
        self.queued: deque[tuple[bytes, int]] = deque()
        """Ring entries ready for submission, with the bytes that each one reads."""
        self.chains_in_flight = 0
        """Chains at the kernel; one read of each is in flight."""

    @property
    def needs_entries(self) -> bool:
        """Whether fewer entries are ready than the next submission can take."""
        return bool(self.waiting) and len(self.queued) < _CHAIN * self.depth

    def take(self, room: int) -> tuple[bytearray, int, int]:
        """At most `room` entries to submit now, their number and the bytes they read.

        They form chains when more entries wait than the depth allows; entries from the first large read on are not chained.
        """
        length = min(_CHAIN, -(-len(self.queued) // self.depth)) if self.queued[0][1] <= _CHAIN_BYTES else 1
        most = min(len(self.queued), (self.depth - self.chains_in_flight) * length, room)
        entries: list[bytes] = []
        num_bytes = 0
        while len(entries) < most and (length == 1 or self.queued[0][1] <= _CHAIN_BYTES):
            made, size = self.queued.popleft()
            entries.append(made)
            num_bytes += size
        self.chains_in_flight += -(-len(entries) // length)
        return chained(entries, length), len(entries), num_bytes


class _Iovec(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("num_bytes", ctypes.c_size_t))


class UringReader(Reader):
    """Reader over one io_uring. Raises UnmetPrerequisite where the kernel has none."""

    def __init__(self, config: UringConfig | None = None) -> None:
        self.config = config or UringConfig()
        if (refusal := ring_refusal()) is not None:
            raise UnmetPrerequisite(f"no io_uring here: {refusal}; use the thread pool")
        self._ring = Ring(min(_MOST_ENTRIES, _CHAIN * sum(self.config.depth.values())) + 2)
        self._files = FileTable(uncached=self.config.uncached)
        self._queues = {name: _Queue(depth) for name, depth in self.config.depth.items()}
        self._flights: dict[int, tuple[_Queue, list[Read], ctypes.Array | None]] = {}
        self._done: list[Completion] = []
        self._in_flight = self._at_kernel = self._checking = self._token = 0
        self._lock = threading.Lock()
        self._closed = False
        self._checker = Checker(self.config.check_threads)
        self._signal = (ctypes.c_uint64 * 1)()
        self._await_signal()
        self._watcher = threading.Thread(target=self._watch, name="uring-watcher", daemon=True) if self.config.watch else None
        if self._watcher is not None:
            self._watcher.start()

    @property
    def in_flight(self) -> int:
        """Reads accepted and not yet reported by `poll`."""
        return self._in_flight

    def open_file(self, path: Path) -> int:
        """Opens a file; raises UnmetPrerequisite where its filesystem can't be read uncached."""
        return self._files.open(path)

    def submit(self, reads: Sequence[Read]) -> int:
        """Accepts a batch; submits to the kernel as many reads as the queues' depths allow."""
        taken = reads[: max(0, self.config.max_queued - self._in_flight)]
        now_ns = time.monotonic_ns()
        for read in taken:
            read.submit_ns = now_ns
        queues = [self._queues[read.queue] for read in taken]
        with self._lock:
            self._in_flight += len(taken)
            for queue, read in zip(queues, taken, strict=True):
                queue.waiting.append(read)
            self._fill()
        return len(taken)

    def poll(self, timeout_s: float | None = 0.0, at_least: int = 1) -> list[Completion]:
        """Completions since the last call; waits for one by spinning for `spin_us`, then sleeping; for more it sleeps at once."""
        start_ns = time.monotonic_ns()
        end_ns = None if timeout_s is None else start_ns + int(timeout_s * NS_PER_S)
        spin_end_ns = start_ns + self.config.spin_us * NS_PER_US if at_least == 1 else start_ns
        with self._lock:
            while True:
                self._collect()
                missing = min(at_least, self._in_flight, _BLOCK) - len(self._done)
                if missing <= 0:
                    break
                now_ns = time.monotonic_ns()
                if end_ns is not None and now_ns >= end_ns:
                    break
                if now_ns >= spin_end_ns:
                    self._sleep(None if end_ns is None else end_ns - now_ns, self._enough(missing))
            done, self._done = self._done, []
        self._in_flight -= len(done)
        return done

    def _sleep(self, timeout_ns: int | None = None, count: int = 1) -> None:
        if self._ring.stuck:
            timeout_ns = _RETRY_NS if timeout_ns is None else min(timeout_ns, _RETRY_NS)
        self._ring.wait(timeout_ns, count)

    def _enough(self, missing: int) -> int:
        """Completions to sleep for: at most half of the kernel's reads, so that its queue never empties; 1 during checks."""
        return 1 if self._checking else max(1, min(missing, self._at_kernel // 2))

    def close(self) -> None:
        """Drops waiting reads, waits for those at the kernel, ends the threads, closes the files."""
        if self._closed:
            return
        with self._lock:
            for queue in self._queues.values():
                queue.waiting.clear()
                queue.queued.clear()
            while any(queue.chains_in_flight for queue in self._queues.values()):
                self._sleep()
                self._collect()
            self._flights.clear()
            self._closed = True
        self._checker.close()
        # the read of the signal is the only one left; its end wakes the watcher too
        self._checker.ring()
        if self._watcher is not None:
            self._watcher.join()
        while not self._ring.reap():
            self._ring.wait()
        self._ring.close()
        os.close(self._checker.signal)
        self._done.clear()
        self._in_flight = 0
        self._files.close()

    def _watch(self) -> None:
        while not self._closed:
            self._ring.wait()
            # a polling thread holds the lock and collects; a watcher blocked on the lock would hold it while waiting for the GIL
            while not self._lock.acquire(blocking=False):
                time.sleep(_WATCH_S)
            try:
                if not self._closed:
                    self._collect()
            finally:
                self._lock.release()

    def _collect(self) -> None:
        """Collects completions from the ring and refills the kernel's queues."""
        if self._ring.stuck:
            self._ring.enter(keep_gil=True)
        if completions := self._ring.reap():
            now_ns = time.monotonic_ns()
            landed = self._land(completions)
            # the next reads are submitted first, so that the disk works while the completions are made
            self._fill()
            for run, result in landed:
                self._finish(run, result, now_ns)

    def _land(self, completions: Sequence[tuple[int, int, int]]) -> list[tuple[list[Read], int]]:
        landed = []
        pop = self._flights.pop
        for token, result, _ in completions:
            if token == _SIGNAL | LAST:
                checked = self._checker.take()
                self._checking -= len(checked)
                self._done += checked
                self._await_signal()
                continue
            if token >= LAST:
                queue, run, _ = pop(token - LAST)
                queue.chains_in_flight -= 1
            else:
                _, run, _ = pop(token)
            self._at_kernel -= 1
            landed.append((run, result))
        return landed

    def _finish(self, run: list[Read], result: int, now_ns: int) -> None:
        first = run[0]
        if len(run) == 1 and result == first.num_bytes and not first.checksums:
            self._done.append(Completion(first.key, first.submit_ns, now_ns))
        elif result > _CHECK_HERE_BYTES and any(read.checksums for read in run):
            self._checking += len(run)
            self._checker.put(run, result)
        else:
            error = None if result >= 0 else failure(OSError(-result, os.strerror(-result)), first)
            self._done += outcome(run, max(result, 0), error)

    def _await_signal(self) -> None:
        address = _address(self._signal)
        self._ring.push(entry(OP_READ, _SIGNAL, self._checker.signal, 0, address, ctypes.sizeof(self._signal)))
        self._ring.enter(keep_gil=True)

    def _fill(self) -> None:
        """Submits entries up to each queue's depth; the first are submitted before the next are made."""
        while True:
            self._hand_over()
            needs_entries = [queue for queue in self._queues.values() if queue.needs_entries]
            if not needs_entries:
                return
            for queue in needs_entries:
                block = [queue.waiting.popleft() for _ in range(min(_BLOCK, len(queue.waiting)))]
                for run in runs_of(block, self.config.coalesce_bytes):
                    self._prepare(queue, run)

    def _prepare(self, queue: _Queue, run: list[Read]) -> None:
        """Makes a run's ring entry ahead of its submission, while earlier reads keep the disk busy."""
        first, vector = run[0], None
        self._token = token = self._token + 1
        descriptor = self._files.descriptor(first.file)
        num_bytes = first.num_bytes if len(run) == 1 else sum(read.num_bytes for read in run)
        flags = 0 if self.config.uncached or num_bytes <= _COPY_HERE_BYTES else ASYNC
        if len(run) == 1:
            made = entry(OP_READ, token, descriptor, first.offset, _address(_byte(first.into)), num_bytes, flags)
        else:
            vector = (_Iovec * len(run))(*(_Iovec(_address(_byte(read.into)), read.num_bytes) for read in run))
            made = entry(OP_READV, token, descriptor, first.offset, _address(vector), len(run), flags)
        # the kernel writes into the reads' memory and reads the vector, so both stay referenced here
        self._flights[token] = queue, run, vector
        queue.queued.append((made, num_bytes))

    def _hand_over(self) -> None:
        """Submits the ready entries to the kernel."""
        # one entry stays free for the signal
        room = self._ring.room - 1
        total_bytes = 0
        for queue in self._queues.values():
            while queue.queued and queue.chains_in_flight < queue.depth and room > 0:
                entries, count, num_bytes = queue.take(room)
                self._ring.push(entries)
                room -= count
                self._at_kernel += count
                total_bytes += num_bytes
        if total_bytes:
            self._ring.enter(keep_gil=total_bytes <= _KEEP_GIL_BYTES)


_address = ctypes.addressof
_byte: Callable[[Any], ctypes.c_char] = ctypes.c_char.from_buffer
"""The first byte of writable memory, as an object that has an address."""
