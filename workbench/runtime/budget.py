"""How a byte budget becomes slots and pages: one global budget over all layers, experts and n-gram pages together."""

from dataclasses import dataclass

from workbench.errors import BadInput
from workbench.geometry import Geometry
from workbench.units import format_bytes

_PAGE_SHARE = 16
"""One part in sixteen of the budget goes to n-gram pages, above their smallest need: they are small and hit less."""


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

    @staticmethod
    def smallest(geometry: Geometry, stride_bytes: int, page_bytes: int) -> "CacheBudget":
        """One token's working set: top-k slots a layer and a page for each n-gram row."""
        return CacheBudget(
            num_slots=geometry.num_experts_per_tok * geometry.num_hidden_layers,
            stride_bytes=stride_bytes,
            num_pages=geometry.ple_heads * len(geometry.ple_layers),
            page_bytes=page_bytes,
        )

    @staticmethod
    def everything(geometry: Geometry, stride_bytes: int, page_bytes: int, total_pages: int) -> "CacheBudget":
        """A slot for every record of the trunk and room for every page: nothing is ever evicted."""
        return CacheBudget(
            num_slots=geometry.num_experts * geometry.num_hidden_layers,
            stride_bytes=stride_bytes,
            num_pages=total_pages,
            page_bytes=page_bytes,
        )

    @staticmethod
    def plan(geometry: Geometry, *, stride_bytes: int, page_bytes: int, total_pages: int, cache_bytes: int) -> "CacheBudget":
        """The largest cache within `cache_bytes`. Raises BadInput with both figures below one token's working set."""
        least = CacheBudget.smallest(geometry, stride_bytes, page_bytes)
        if cache_bytes < least.num_bytes:
            raise BadInput(
                f"a cache of {cache_bytes:,} bytes ({format_bytes(cache_bytes)}) is below one token's working set of "
                f"{least.num_bytes:,} bytes ({format_bytes(least.num_bytes)}: {least.num_slots} record slots and "
                f"{least.num_pages} n-gram pages); give at least that"
            )
        most = CacheBudget.everything(geometry, stride_bytes, page_bytes, total_pages)
        pages = cache_bytes // _PAGE_SHARE // page_bytes
        pages = min(max(pages, least.num_pages), most.num_pages)
        slots = min((cache_bytes - pages * page_bytes) // least.stride_bytes, most.num_slots)
        if slots < least.num_slots:
            slots, pages = least.num_slots, (cache_bytes - least.num_slots * least.stride_bytes) // page_bytes
        elif slots == most.num_slots:
            pages = min((cache_bytes - slots * least.stride_bytes) // page_bytes, most.num_pages)
        return CacheBudget(num_slots=slots, stride_bytes=least.stride_bytes, num_pages=pages, page_bytes=page_bytes)
