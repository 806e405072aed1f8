"""N-gram rows from disk: their pages are planned as soon as the tokens are known, and waited for where they are used."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from workbench.readers.base import Checksum, Read
from workbench.runtime.pool import PagePool
from workbench.runtime.step import Step
from workbench.runtime.transfer import Transfer
from workbench.scheduling.demand import Demand
from workbench.scheduling.queue import Order
from workbench.stores.ple_pages import PleStore

LAYER_SHIFT = 40
"""A page's key is its PLE layer's position times 2^40 plus its index: stores have far fewer pages."""


class PageSource:
    """Reads of n-gram pages. `stores` by layer index, `files` the reader's index of each."""

    def __init__(
        self, stores: Mapping[int, PleStore], files: Mapping[int, int], pool: PagePool, *, lane: str, checksums: bool
    ) -> None:
        self._stores, self._pool, self._lane, self._checksums = stores, pool, lane, checksums
        self._files = files
        self._layers = sorted(stores)

    def keys(self, layer: int, pages: np.ndarray) -> np.ndarray:
        """Keys of `pages` of `layer`'s store."""
        return pages + (self._layers.index(layer) << LAYER_SHIFT)

    def sizes(self, key: int, bits: int) -> tuple[int, int]:
        """Bytes of a page, and bytes that its read moves."""
        return self._pool.page_bytes, self._pool.page_bytes

    def arrived(self, order: Order) -> None:
        """A page needs nothing more."""

    def read(self, order: Order) -> Read:
        """The read of one page into its slot."""
        layer = self._layers[order.ticket.key >> LAYER_SHIFT]
        page = order.ticket.key & ((1 << LAYER_SHIFT) - 1)
        store = self._stores[layer]
        extent = store.page(page)
        return Read(
            key=order.number,
            file=self._files[layer],
            offset=extent.offset,
            num_bytes=extent.num_bytes,
            into=self._pool.pages[order.slot],
            lane=self._lane,
            checksums=(Checksum(0, extent.num_bytes, store.page_crc32(page)),) if self._checksums else (),
        )


def _inside(keys: np.ndarray, chunks: Sequence[np.ndarray], index: int) -> np.ndarray:
    """Which of `keys` lie in one of the ascending chunks that they were cut into."""
    return (keys >= chunks[index][0]) & (keys <= chunks[index][-1])


@dataclass(slots=True)
class _Wanted:
    """Rows of one layer's pass: keys of their pages and place in the page, unique keys as many at a time as may be held."""

    num_tokens: int
    keys: np.ndarray
    places: np.ndarray
    chunks: list[np.ndarray]
    demand: Demand | None = None
    """Of the first chunk, once it was asked for."""


class StreamedRows:
    """N-gram rows of a page pool that is filled from PLE stores."""

    def __init__(
        self, stores: Mapping[int, PleStore], transfer: Transfer, source: PageSource, pool: PagePool, step: Step, *, early: bool
    ) -> None:
        """`early`: reads start as soon as the tokens are known; else where the layer needs the rows."""
        self._stores, self._transfer, self._source, self._pool, self._step = stores, transfer, source, pool, step
        self._early = early
        self._wanted: dict[int, _Wanted] = {}

    def start(self, layer: int, row_ids: np.ndarray) -> None:
        """Plans the pages of the rows `[T, heads]` that `layer` will use: each once, in the order of the file.

        Where reads start early, sends off as many as the pool holds.
        """
        pages, places = self._stores[layer].locate(row_ids.ravel())
        keys = self._source.keys(layer, pages)
        unique = np.unique(keys)
        chunks = [unique[i : i + self._room] for i in range(0, len(unique), self._room)]
        wanted = self._wanted[layer] = _Wanted(len(row_ids), keys, places, chunks)
        self._note(layer, row_ids, keys)
        if self._early:
            wanted.demand = self._ask(layer, wanted, 0)

    def _note(self, layer: int, row_ids: np.ndarray, keys: np.ndarray) -> None:
        """What of a block's rows and pages is distinct; pages are counted token by token before."""
        by_token = np.sort(keys.reshape(row_ids.shape), axis=1)
        requested = by_token.size - int((by_token[:, 1:] == by_token[:, :-1]).sum())
        event, position = self._step.event(layer), self._step.position
        self._transfer.mark("ple", "rows_unique", len(np.unique(row_ids)), event, position=position)
        self._transfer.mark("ple", "pages_requested", requested, event, position=position)

    @property
    def _room(self) -> int:
        # each PLE layer's first chunk is held at once, from before the first layer on
        return self._pool.num_slots // len(self._stores)

    def _ask(self, layer: int, wanted: _Wanted, index: int) -> Demand:
        """Demands the pages of one chunk."""
        event, position = self._step.event(layer), self._step.position
        num_rows = int(_inside(wanted.keys, wanted.chunks, index).sum())
        num_bytes, keys = num_rows * self._stores[layer].row_bytes, wanted.chunks[index].tolist()
        return self._transfer.demand("ple", keys, event, position=position, logical_bytes=num_bytes, num_rows=num_rows)

    def rows(self, layer: int) -> mx.array:
        """The announced rows, heads side by side: float32 `[T, ple_embed_dim]`."""
        wanted = self._wanted.pop(layer)
        store = self._stores[layer]
        values = np.empty((len(wanted.keys), store.row_width), dtype=np.float32)
        for index in range(len(wanted.chunks)):
            early = wanted.demand if index == 0 else None
            demand = self._ask(layer, wanted, index) if early is None else early
            inside = _inside(wanted.keys, wanted.chunks, index)
            try:
                self._transfer.wait(demand, position=self._step.position)
                slots = np.array([demand.slots[key] for key in wanted.keys[inside].tolist()])
                values[inside] = store.decode(self._pool.pages, slots, wanted.places[inside])
            finally:
                self._transfer.scheduler.release(demand)
        return mx.array(values.reshape(wanted.num_tokens, -1))

    def forget(self) -> None:
        """Drops announced rows of a pass that failed; the scheduler has ended or will end their leases."""
        self._wanted.clear()
