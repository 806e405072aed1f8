"""How a byte budget becomes slots and pages: one global budget over all layers, experts and n-gram pages together."""

from dataclasses import dataclass, replace

from workbench.errors import BadInput
from workbench.units import format_bytes

_PAGE_SHARE = 16
"""One sixteenth of the budget is for n-gram pages, above their smallest need: they are small and hit less."""


@dataclass(frozen=True, kw_only=True)
class CacheBudget:
    """Slots for records and for n-gram pages."""

    num_slots: int
    stride_bytes: int
    num_pages: int
    page_bytes: int

    @property
    def num_bytes(self) -> int:
        """Bytes that the cache takes: slots x stride plus pages."""
        return self.num_slots * self.stride_bytes + self.num_pages * self.page_bytes


def plan_cache(least: CacheBudget, most: CacheBudget, cache_bytes: int) -> CacheBudget:
    """The cache for a budget, between one token's working set and everything.

    Raises BadInput with both figures when the budget is below the working set.
    """
    if cache_bytes < least.num_bytes:
        raise BadInput(
            f"a cache of {cache_bytes:,} bytes ({format_bytes(cache_bytes)}) is below one token's working set of "
            f"{least.num_bytes:,} bytes ({format_bytes(least.num_bytes)}: {least.num_slots} record slots and "
            f"{least.num_pages} n-gram pages); give at least that"
        )
    room_bytes = cache_bytes - least.num_bytes
    extra_page_bytes = min(room_bytes // _PAGE_SHARE, (most.num_pages - least.num_pages) * least.page_bytes)
    slots = least.num_slots + (room_bytes - extra_page_bytes) // least.stride_bytes
    slots = min(slots, most.num_slots)
    if not least.page_bytes:
        return replace(least, num_slots=slots)
    # bytes that fill no slot are for pages
    pages = (cache_bytes - slots * least.stride_bytes) // least.page_bytes
    return replace(least, num_slots=slots, num_pages=min(pages, most.num_pages))
