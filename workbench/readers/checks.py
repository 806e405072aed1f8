"""Threads that check the CRC-32s of large reads, off the compute thread. Linux only: an eventfd signals finished checks."""

import os
import queue
import threading
from collections import deque

from workbench.readers.base import Completion, Read
from workbench.readers.files import outcome


class Checker:
    """Checks runs that were read and makes their completions; `signal` becomes readable whenever completions are ready."""

    def __init__(self, num_threads: int) -> None:
        self.signal = os.eventfd(0, os.EFD_CLOEXEC)
        self._runs: queue.SimpleQueue[tuple[list[Read], int] | None] = queue.SimpleQueue()
        self._done: deque[Completion] = deque()
        self._threads = [
            threading.Thread(target=self._serve, name=f"check-{number}", daemon=True) for number in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def put(self, run: list[Read], num_bytes: int) -> None:
        """Checks a run of which `num_bytes` arrived."""
        self._runs.put((run, num_bytes))

    def take(self) -> list[Completion]:
        """Completions since the last call."""
        return [self._done.popleft() for _ in range(len(self._done))]

    def ring(self) -> None:
        """Makes `signal` readable."""
        os.eventfd_write(self.signal, 1)

    def close(self) -> None:
        """Checks the runs already put, then ends the threads; `signal` stays open, and the caller closes it."""
        for _ in self._threads:
            self._runs.put(None)
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        while (job := self._runs.get()) is not None:
            run, num_bytes = job
            self._done.extend(outcome(run, num_bytes, None))
            self.ring()
