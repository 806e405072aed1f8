"""Cache states that a cohort declares: how the page cache is brought into each state, and the check by `mincore`."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from workbench.hardware import cached_fraction, drop_from_page_cache

COLD_FRACTION = 0.05
"""A cold store has at most this share of its pages in the page cache."""
WARM_FRACTION = 0.95
"""A warm store has at least this share."""
_CHUNK_BYTES = 8 * 1024 * 1024


class CacheState(StrEnum):
    """State of the caches at the start of a timed arm."""

    COLD_PROCESS = "cold_process"
    """A new process; the page cache as it happens to be."""
    COLD_STORE = "cold_store"
    """The stores' pages dropped from the page cache."""
    WARM_STORE = "warm_store"
    """The stores' pages in the page cache."""
    HOT_CACHE = "hot_cache"
    """The process's own slots filled by an untimed pass of the same plan."""


def prepare(files: Sequence[Path], state: CacheState) -> None:
    """Drops `files` from the page cache or reads them into it, as `state` asks; `problem` checks the outcome."""
    for path in files:
        if state is CacheState.COLD_STORE:
            drop_from_page_cache(path)
        elif state in (CacheState.WARM_STORE, CacheState.HOT_CACHE):
            with path.open("rb", buffering=0) as file:
                while file.read(_CHUNK_BYTES):
                    pass


def cached(files: Sequence[Path]) -> float | None:
    """Share of all pages of `files` in the page cache, or None without files."""
    sizes = [path.stat().st_size for path in files]
    if not sum(sizes):
        return None
    return sum(cached_fraction(path) * size for path, size in zip(files, sizes, strict=True)) / sum(sizes)


def problem(state: CacheState, fraction: float | None) -> str | None:
    """Why the page cache is not as declared, or None."""
    if state is CacheState.COLD_PROCESS:
        return None
    if fraction is None:
        return f"{state.value} was declared, but no store files are known to check it"
    if state is CacheState.COLD_STORE and fraction > COLD_FRACTION:
        return f"{fraction:.0%} of the store was in the page cache, cold_store allows {COLD_FRACTION:.0%}"
    if state is CacheState.WARM_STORE and fraction < WARM_FRACTION:
        return f"{fraction:.0%} of the store was in the page cache, warm_store needs {WARM_FRACTION:.0%}"
    return None
