"""N-gram rows from a page pool: pages are demanded when the tokens are known; the layer that uses the rows waits for them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from workbench.loading.pages import PageBatch, PageLoad, PageSource
from workbench.loading.transfer import Transfer
from workbench.loading.wait import Loading
from workbench.runtime.lane import Lane
from workbench.runtime.memory import PageMemory
from workbench.scheduling.ticket import Demand
from workbench.stores.ple_pages import PleStore


@dataclass(frozen=True, slots=True, eq=False)
class _PageRows:
    """N-gram rows of one layer's pass: keys of their pages and places in the page, and the chunks that are loaded together."""

    load: PageLoad
    keys: np.ndarray
    places: np.ndarray
    chunks: list[np.ndarray]
    num_tokens: int


class StreamedRows:
    """N-gram rows of a page pool that is filled from PLE stores."""

    def __init__(
        self, stores: Mapping[int, PleStore], transfer: Transfer, source: PageSource, memory: PageMemory, *, early: bool
    ) -> None:
        """`early`: reads start as soon as the tokens are known; else where the layer needs the rows."""
        self._stores, self._transfer, self._source, self._memory = stores, transfer, source, memory
        self._early = early

    def announce(self, lane: Lane, layer: int, row_ids: np.ndarray) -> None:
        """Plans the pages of the rows `[T, heads]` that `layer` will use: each page once, in the order of the file.

        With `early`, submits as many reads as the pool holds.
        """
        pages, places = self._stores[layer].locate(row_ids.ravel())
        keys = self._source.keys(layer, pages)
        unique = np.unique(keys)
        chunks = [unique[i : i + self._room] for i in range(0, len(unique), self._room)]
        origin = lane.scope.origin(layer)
        self._note(lane, layer, row_ids, keys)
        parts = [self._part(layer, keys, chunk) for chunk in chunks]
        load = PageLoad(self._transfer, origin, parts, early=self._early)
        lane.rows[layer] = _PageRows(load, keys, places, chunks, len(row_ids))

    def _part(self, layer: int, keys: np.ndarray, chunk: np.ndarray) -> PageBatch:
        num_rows = int(_inside(keys, chunk).sum())
        return PageBatch(chunk.tolist(), num_rows * self._stores[layer].row_bytes, num_rows)

    def _note(self, lane: Lane, layer: int, row_ids: np.ndarray, keys: np.ndarray) -> None:
        """Logs unique rows, and requested pages before deduplication across the block."""
        by_token = np.sort(keys.reshape(row_ids.shape), axis=1)
        requested = by_token.size - int((by_token[:, 1:] == by_token[:, :-1]).sum())
        origin = lane.scope.origin(layer)
        self._transfer.mark("ple", "rows_unique", len(np.unique(row_ids)), origin)
        self._transfer.mark("ple", "pages_requested", requested, origin)

    @property
    def _room(self) -> int:
        # each PLE layer's first chunk is held at once, from before the first layer on
        return self._memory.num_slots // len(self._stores)

    def load(self, lane: Lane, layer: int) -> Loading[list[mx.array]]:
        """The announced rows, heads side by side: float32 `[T, ple_embed_dim]`."""
        store = self._stores[layer]
        rows: _PageRows = lane.rows.pop(layer)
        values = np.empty((len(rows.keys), store.row_width), dtype=np.float32)

        def decode(index: int, demand: Demand) -> None:
            inside = _inside(rows.keys, rows.chunks[index])
            slots = np.array([demand.slots[key] for key in rows.keys[inside].tolist()])
            values[inside] = store.decode(self._memory.pages, slots, rows.places[inside])
            lane.note_reads("ple", rows.keys.reshape(rows.num_tokens, -1), demand, self._memory.page_bytes)

        yield from rows.load.run(decode)
        return [mx.array(values.reshape(rows.num_tokens, -1))]


def _inside(keys: np.ndarray, chunk: Sequence[int] | np.ndarray) -> np.ndarray:
    """Which of `keys` lie in one of the ascending chunks that they were cut into."""
    return (keys >= chunk[0]) & (keys <= chunk[-1])
