"""One progress helper for a terminal, a notebook and a plain log. Progress goes to stderr, results to stdout."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_PLAIN_INTERVAL_S = 10.0
_SILENT_S = 2.0


def say(line: str) -> None:
    """Prints one line about a run's progress to stderr."""
    print(line, file=sys.stderr, flush=True)


@contextmanager
def progress(label: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Yields `advance(n)`; shows a bar on a terminal and one plain line at most every ten seconds elsewhere.

    tqdm.auto and rich show empty widgets in headless notebooks, hence plain lines there.
    """
    with (_rich_bar if sys.stderr.isatty() else _plain_lines)(label, total) as advance:
        yield advance


@contextmanager
def _plain_lines(label: str, total: int | None) -> Iterator[Callable[[int], None]]:
    start = printed_s = time.monotonic()
    done = 0

    def report() -> None:
        print(_plain_line(label, done, total, time.monotonic() - start), file=sys.stderr, flush=True)

    def advance(n: int) -> None:
        nonlocal done, printed_s
        done += n
        if time.monotonic() - printed_s >= _PLAIN_INTERVAL_S:
            printed_s = time.monotonic()
            report()

    yield advance
    if time.monotonic() - start >= _SILENT_S:
        report()


def _plain_line(label: str, done: int, total: int | None, elapsed_s: float) -> str:
    rate = done / elapsed_s if elapsed_s > 0 else 0.0
    if total is None:
        return f"[{label}] {done} in {elapsed_s:.0f} s"
    eta_s = (total - done) / rate if rate else 0.0
    return f"[{label}] {done}/{total} {100 * done // max(total, 1)}% {rate:.3g}/s eta {eta_s:.0f} s"


@contextmanager
def _rich_bar(label: str, total: int | None) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)

        def advance(n: int) -> None:
            bar.advance(task, n)

        yield advance
