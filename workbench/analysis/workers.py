"""Runs independent jobs on a pool of processes."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

POOL_PAYS = 4_000_000
"""Number of replayed accesses above which starting processes costs less time than it saves."""


def completed(work: Callable[..., Any], jobs: Sequence[tuple[Any, ...]], workers: int | None = None) -> Iterator[tuple[int, Any]]:
    """Yields `(index, work(*jobs[index]))` as jobs end. `workers` processes, default: one per core; 1: this process.

    When the caller stops iterating, jobs that have not started are cancelled.
    """
    workers = min(workers or os.cpu_count() or 1, len(jobs))
    if workers <= 1:
        yield from ((index, work(*job)) for index, job in enumerate(jobs))
        return
    # spawn, not fork: a fork would copy this process's locks as its other threads hold them
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_leave_interrupts_to_the_parent) as pool:
        futures = {pool.submit(work, *job): index for index, job in enumerate(jobs)}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
