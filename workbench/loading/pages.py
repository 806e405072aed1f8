"""N-gram pages: reads of single pages, and the pages of a pass, demanded as soon as its tokens are known."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from workbench.loading.transfer import Transfer
from workbench.loading.wait import Loading
from workbench.readers.base import Buffer, Checksum, Read
from workbench.scheduling.ticket import Demand, Order, Origin
from workbench.stores.ple_pages import PleStore

LAYER_SHIFT = 40
"""A page's key is its PLE layer's position times 2^40 plus its index: stores have far fewer pages."""


class PageBuffers(Protocol):
    """Slots of one page each."""

    page_bytes: int
    pages: np.ndarray
    """uint8 `[num_slots, page_bytes]`."""


class PageSource:
    """Reads of n-gram pages. `stores` by layer index, `files` the reader's index of each."""

    def __init__(
        self, stores: Mapping[int, PleStore], files: Mapping[int, int], memory: PageBuffers, *, queue: str, checksums: bool
    ) -> None:
        self._stores, self._memory, self._queue, self._checksums = stores, memory, queue, checksums
        self._files = files
        self._layers = sorted(stores)

    def keys(self, layer: int, pages: np.ndarray) -> np.ndarray:
        """Keys of `pages` of `layer`'s store."""
        return pages + (self._layers.index(layer) << LAYER_SHIFT)

    def sizes(self, key: int, bits: int) -> tuple[int, int]:
        """Bytes of a page, and bytes that its read moves."""
        return self._memory.page_bytes, self._memory.page_bytes

    def arrived(self, order: Order) -> None:
        """Does nothing: a page is used as it was read."""

    def read(self, order: Order) -> Read:
        """The read of one page into its slot."""
        layer = self._layers[order.ticket.key >> LAYER_SHIFT]
        page = order.ticket.key & ((1 << LAYER_SHIFT) - 1)
        store = self._stores[layer]
        extent = store.page(page)
        into: Buffer = self._memory.pages[order.slot]
        return Read(
            key=order.number,
            file=self._files[layer],
            offset=extent.offset,
            num_bytes=extent.num_bytes,
            into=into,
            queue=self._queue,
            checksums=(Checksum(0, extent.num_bytes, store.page_crc32(page)),) if self._checksums else (),
        )


@dataclass(frozen=True, slots=True)
class PageBatch:
    """Pages of one layer that are demanded and released together."""

    keys: Sequence[int]
    logical_bytes: int
    num_rows: int | None = None
    """N-gram rows in these pages that tokens asked for."""


class PageLoad:
    """The pages of one layer of one pass, in batches that fit the layer's share of the pool; the first may be demanded early."""

    def __init__(self, transfer: Transfer, origin: Origin, parts: Sequence[PageBatch], *, early: bool) -> None:
        """`early`: demands the first batch now if enough slots are free; every other batch is demanded in `run`."""
        self._transfer, self._origin, self._parts = transfer, origin, parts
        self._first: Demand | None = None
        if early and parts:
            asked_ns, part = transfer.clock.now_ns(), parts[0]
            self._first = transfer.ask("ple", part.keys, origin)
            if self._first is not None:
                transfer.recorder.demand(
                    self._first, part.keys, asked_ns, logical_bytes=part.logical_bytes, num_rows=part.num_rows
                )

    def run(self, use: Callable[[int, Demand], None]) -> Loading[None]:
        """Loads the batches in order; calls `use(batch index, demand)` for each before its pages are released."""
        for index, part in enumerate(self._parts):
            demand, self._first = self._first, None
            if demand is None:
                demand = yield from self._transfer.load(
                    "ple", part.keys, self._origin, logical_bytes=part.logical_bytes, num_rows=part.num_rows
                )
            yield from self._transfer.wait(demand)
            use(index, demand)
            self._transfer.release(demand)
