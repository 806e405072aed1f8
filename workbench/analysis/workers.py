"""Runs independent jobs on a pool of processes."""

import multiprocessing
import os
import signal
import threading
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
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_follow_the_parent) as pool:
        futures = {pool.submit(work, *job): index for index, job in enumerate(jobs)}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except KeyboardInterrupt:
            # running jobs may take minutes, and nothing waits for their results
            for child in multiprocessing.active_children():
                child.kill()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _follow_the_parent() -> None:
    """Leaves interrupts to the parent process, and ends this process when the parent has ended, however it did."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
