"""Chooses the reader that needs the GIL least on this machine."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from workbench.readers.base import Reader
from workbench.readers.pread import PreadConfig, PreadReader
from workbench.readers.ring import ring_refusal
from workbench.readers.uring import UringConfig, UringReader
from workbench.units import MIB


def open_reader(*, uncached: bool, depth: Mapping[str, int], coalesce_bytes: int = 4 * MIB) -> Reader:
    """A reader with up to `depth` reads in flight in each queue: io_uring where the kernel allows it, else threads.

    Reader threads wait for the GIL while other Python code runs: use `quick_switching` around them.
    """
    if ring_refusal() is None:
        return UringReader(UringConfig(depth=depth, uncached=uncached, coalesce_bytes=coalesce_bytes))
    return PreadReader(PreadConfig(uncached=uncached, threads=depth, coalesce_bytes=coalesce_bytes))


@contextmanager
def quick_switching(interval_s: float = 1e-5) -> Iterator[None]:
    """Sets Python's switch interval: a thread whose read has completed gets the GIL within `interval_s` (default 5 ms)."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(interval_s)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
