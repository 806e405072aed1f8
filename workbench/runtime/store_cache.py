"""The cache of a store: its smallest and largest size, and its size for a byte budget."""

import math

import psutil

from workbench.runtime.budget import CacheBudget, plan_cache
from workbench.runtime.memory import slot_stride_bytes
from workbench.stores import Store
from workbench.units import PAGE_BYTES

_DEFAULT_SHARE = 0.5


def lead_in_granule(store: Store) -> int:
    """A divisor of every record's lead-in: layers start on pages of the store, records follow back to back."""
    first = store.experts.record(store.experts.layers[0].layer, 0)
    return math.gcd(first.offset, first.num_bytes, PAGE_BYTES)


def cache_limits(store: Store) -> tuple[CacheBudget, CacheBudget]:
    """The smallest cache that a store admits, and the one that holds all of it."""
    geometry = store.geometry
    page_bytes = max((ngrams.page_bytes for ngrams in store.ngrams.values()), default=0)
    stride_bytes = slot_stride_bytes(geometry, lead_in_granule(store))
    least = CacheBudget(
        num_slots=geometry.num_experts_per_tok * geometry.num_hidden_layers,
        stride_bytes=stride_bytes,
        num_pages=geometry.ple_heads * len(store.ngrams),
        page_bytes=page_bytes,
    )
    most = CacheBudget(
        num_slots=geometry.num_experts * geometry.num_hidden_layers,
        stride_bytes=stride_bytes,
        num_pages=sum(ngrams.num_pages for ngrams in store.ngrams.values()),
        page_bytes=page_bytes,
    )
    return least, most


def plan_store_cache(store: Store, cache_bytes: int | None) -> tuple[CacheBudget, CacheBudget]:
    """The smallest cache that a store admits, and the cache for a budget; by default half of the free memory.

    Raises BadInput when the budget is below one token's working set.
    """
    least, most = cache_limits(store)
    if cache_bytes is None:
        cache_bytes = min(most.num_bytes, int(psutil.virtual_memory().available * _DEFAULT_SHARE))
    return least, plan_cache(least, most, cache_bytes)
