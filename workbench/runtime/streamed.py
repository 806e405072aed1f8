"""Routed experts and n-gram rows from disk: what `forward` computes on, read when the native router or known tokens say so."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from workbench.geometry import COMPONENTS, DOWN, GATE, UP, Geometry
from workbench.model.experts import QuantizedMatrix, expert_forward, stacked_expert_forward, swiglu
from workbench.readers.base import Checksum, Read
from workbench.runtime.pool import PagePool, RecordPool
from workbench.runtime.transfer import Transfer
from workbench.scheduling.demand import Demand
from workbench.scheduling.queue import Order
from workbench.scheduling.ticket import Event
from workbench.stores.expert_major import ExpertStore
from workbench.stores.extents import Extent
from workbench.stores.ple_pages import PleStore
from workbench.units import PAGE_BYTES, align_down, align_up

Timed = Callable[[str, Callable[[], list[mx.array]]], list[mx.array]]

_NAMES = [tuple(name for i, name in enumerate(COMPONENTS) if bits >> i & 1) for bits in range(1 << len(COMPONENTS))]


@dataclass(slots=True)
class Step:
    """What the pass under way is, for events: set by the session before each pass."""

    request: int = 0
    phase: str = "prefill"
    position: int = 0

    def event(self, layer: int) -> Event:
        """The event of `layer` in this pass."""
        return Event(request=self.request, phase=self.phase, layer=layer)


class RecordSource:
    """Reads of expert records: page-aligned windows, each slot with its record's own lead-in."""

    def __init__(self, store: ExpertStore, pool: RecordPool, file: int, *, checksums: bool) -> None:
        self._store, self._pool, self._file, self._checksums = store, pool, file, checksums
        self._num_experts = store.num_experts
        self._lead_ins = {
            layer.layer * self._num_experts + expert: store.record(layer.layer, expert).offset % PAGE_BYTES
            for layer in store.layers
            for expert in range(self._num_experts)
        }

    def lead_in(self, key: int) -> int:
        """Bytes between the start of a record's window and the record."""
        return self._lead_ins[key]

    def sizes(self, key: int, bits: int) -> tuple[int, int]:
        """Bytes of the components in `bits`, and bytes that their read moves."""
        extents = self._extents(key, bits)
        low, high = _window(extents)
        return sum(extent.num_bytes for extent in extents), high - low

    def arrived(self, order: Order) -> None:
        """The bytes of an order are in its slot."""
        self._pool.arrived(order.slot, self.lead_in(order.ticket.key), _names(order.bits))

    def read(self, order: Order) -> Read:
        """The read of an order's components into its slot."""
        extents = self._extents(order.ticket.key, order.bits)
        low, high = _window(extents)
        base = align_down(self._store.record(*divmod(order.ticket.key, self._num_experts)).offset, PAGE_BYTES)
        return Read(
            key=order.number,
            file=self._file,
            offset=low,
            num_bytes=high - low,
            into=self._pool.window(order.slot, high - base)[low - base :],
            lane=order.lane,
            need_bytes=extents[-1].end - low,
            checksums=self._sums(order, extents, low) if self._checksums else (),
        )

    def _extents(self, key: int, bits: int) -> list[Extent]:
        layer, expert = divmod(key, self._num_experts)
        return [self._store.component(layer, expert, name) for name in _names(bits)]

    def _sums(self, order: Order, extents: Sequence[Extent], low: int) -> tuple[Checksum, ...]:
        layer, expert = divmod(order.ticket.key, self._num_experts)
        sums = ((e, self._store.crc32(layer, expert, name)) for e, name in zip(extents, _names(order.bits), strict=True))
        return tuple(Checksum(extent.offset - low, extent.num_bytes, crc) for extent, crc in sums if crc is not None)


def _names(bits: int) -> tuple[str, ...]:
    return _NAMES[bits]


def _window(extents: Sequence[Extent]) -> tuple[int, int]:
    return align_down(extents[0].offset, PAGE_BYTES), align_up(extents[-1].end, PAGE_BYTES)


class StreamedExperts:
    """Experts of a slot pool that is filled from an ExpertMajor store. Each expert runs on its own slot's arrays."""

    def __init__(self, geometry: Geometry, transfer: Transfer, source: RecordSource, pool: RecordPool, step: Step) -> None:
        self._geometry, self._transfer, self._source, self._pool, self._step = geometry, transfer, source, pool, step
        self._held: Demand | None = None
        self.timed: Timed | None = None
        """Set by an attribution run: runs a named part, evaluates it and notes its time."""

    def run(self, layer: int, hidden: mx.array, ids: mx.array) -> mx.array:
        """The experts `ids [T, k]` of `layer` on `hidden [T, H]`: `[T, k, H]`."""
        chosen = np.array(ids)
        # reading the ids back has evaluated everything before, so the slots of the layer before are free to go
        self.settle()
        experts = list(dict.fromkeys(chosen.ravel().tolist()))
        passes = [experts[i : i + self._pool.num_slots] for i in range(0, len(experts), self._pool.num_slots)]
        if self._pool.small and len(passes) == 1:
            return self._run_stack(layer, hidden, chosen)
        if len(chosen) == 1:
            return mx.stack(self._run_pass(layer, experts, [hidden] * len(experts)), axis=1)
        return self._run_block(layer, hidden, chosen, passes)

    def _run_stack(self, layer: int, hidden: mx.array, chosen: np.ndarray) -> mx.array:
        """All experts in one gather over the pool."""
        keys = (chosen.ravel() + layer * self._geometry.num_experts).tolist()
        slots = self._bring(layer, keys)
        entries = [self._pool.entry(slots[key], self._source.lead_in(key)) for key in keys]
        ids = mx.array(np.array(entries, dtype=np.uint32).reshape(chosen.shape))
        gate, up, down = (self._pool.stack[name] for name in COMPONENTS)
        if self.timed is None:
            return stacked_expert_forward(hidden, ids, gate, up, down)
        x = hidden[:, None, None, :]
        inner = self.timed("gate_up", lambda: [swiglu(gate.apply_gathered(x, ids), up.apply_gathered(x, ids))])
        return self.timed("down", lambda: [down.apply_gathered(inner[0], ids).squeeze(2)])[0]

    def _run_block(self, layer: int, hidden: mx.array, chosen: np.ndarray, passes: list[list[int]]) -> mx.array:
        """Tokens grouped by expert; a union larger than the pool runs in passes."""
        flat = chosen.ravel()
        outputs, order = [], []
        for experts in passes:
            pairs = [np.flatnonzero(flat == expert) for expert in experts]
            rows = [hidden[mx.array(pair // chosen.shape[1])] for pair in pairs]
            outputs += self._run_pass(layer, experts, rows)
            order += pairs
            if len(passes) > 1:
                mx.eval(outputs)
                self.settle()
        back = np.argsort(np.concatenate(order), kind="stable")
        return mx.concatenate(outputs)[mx.array(back)].reshape(*chosen.shape, -1)

    def _run_pass(self, layer: int, experts: Sequence[int], rows: Sequence[mx.array]) -> list[mx.array]:
        keys = [layer * self._geometry.num_experts + expert for expert in experts]
        slots = self._bring(layer, keys)
        views = [self._pool.components(slots[key], self._source.lead_in(key)) for key in keys]
        if self.timed is not None:
            return self._run_timed(rows, views, self.timed)
        return [expert_forward(x, view[GATE], view[UP], view[DOWN]) for x, view in zip(rows, views, strict=True)]

    def _run_timed(
        self, rows: Sequence[mx.array], views: Sequence[Mapping[str, QuantizedMatrix]], timed: Timed
    ) -> list[mx.array]:
        pairs = list(zip(rows, views, strict=True))
        inner = timed("gate_up", lambda: [swiglu(view[GATE].apply(x), view[UP].apply(x)) for x, view in pairs])
        return timed("down", lambda: [view[DOWN].apply(x) for x, view in zip(inner, views, strict=True)])

    def _bring(self, layer: int, keys: list[int]) -> Mapping[int, int]:
        """Demands records, waits for them, and holds them: their slots by key."""
        keys = list(dict.fromkeys(keys))
        self._held = self._transfer.demand(
            "expert",
            keys,
            self._step.event(layer),
            position=self._step.position,
            logical_bytes=len(keys) * self._geometry.record_bytes,
        )
        self._transfer.wait(self._held, position=self._step.position)
        return self._held.slots

    def settle(self) -> None:
        """Ends the leases of the layer that ran last; its results must have been evaluated."""
        if self._held is not None:
            self._transfer.scheduler.release(self._held)
            self._held = None

    def forget(self) -> None:
        """Drops what a failed pass holds; the scheduler ends its leases."""
        self._held = None


_LAYER_SHIFT = 40
"""A page's key is its PLE layer's position times 2^40 plus its index: stores have far fewer pages."""


class PageSource:
    """Reads of n-gram pages. `stores` by layer index, `files` the reader's index of each."""

    def __init__(self, stores: Mapping[int, PleStore], files: Mapping[int, int], pool: PagePool, *, checksums: bool) -> None:
        self._stores, self._pool, self._checksums = stores, pool, checksums
        self._files = files
        self._layers = sorted(stores)

    def keys(self, layer: int, pages: np.ndarray) -> np.ndarray:
        """Keys of `pages` of `layer`'s store."""
        return pages + (self._layers.index(layer) << _LAYER_SHIFT)

    def sizes(self, key: int, bits: int) -> tuple[int, int]:
        """Bytes of a page, and bytes that its read moves."""
        return self._pool.page_bytes, self._pool.page_bytes

    def arrived(self, order: Order) -> None:
        """A page needs nothing more."""

    def read(self, order: Order) -> Read:
        """The read of one page into its slot."""
        layer = self._layers[order.ticket.key >> _LAYER_SHIFT]
        page = order.ticket.key & ((1 << _LAYER_SHIFT) - 1)
        store = self._stores[layer]
        extent = store.page(page)
        return Read(
            key=order.number,
            file=self._files[layer],
            offset=extent.offset,
            num_bytes=extent.num_bytes,
            into=self._pool.pages[order.slot],
            lane=order.lane,
            checksums=(Checksum(0, extent.num_bytes, store.page_crc32(page)),) if self._checksums else (),
        )


def _inside(keys: np.ndarray, chunks: Sequence[np.ndarray], index: int) -> np.ndarray:
    """Which of `keys` lie in one of the ascending chunks that they were cut into."""
    return (keys >= chunks[index][0]) & (keys <= chunks[index][-1])


@dataclass(slots=True)
class _Wanted:
    """Rows of one layer's pass: keys of their pages, place in the page, and the demand of the first chunk."""

    num_tokens: int
    keys: np.ndarray
    places: np.ndarray
    chunks: list[np.ndarray]
    demand: Demand


class StreamedRows:
    """N-gram rows of a page pool that is filled from PLE stores; reads start as soon as the tokens are known."""

    def __init__(
        self, stores: Mapping[int, PleStore], transfer: Transfer, source: PageSource, pool: PagePool, step: Step
    ) -> None:
        self._stores, self._transfer, self._source, self._pool, self._step = stores, transfer, source, pool, step
        self._wanted: dict[int, _Wanted] = {}

    def start(self, layer: int, row_ids: np.ndarray) -> None:
        """Sends off the reads of the rows `[T, heads]` that `layer` will use, as many as the pool holds."""
        pages, places = self._stores[layer].locate(row_ids.ravel())
        keys = self._source.keys(layer, pages)
        unique = np.unique(keys)
        chunks = [unique[i : i + self._room] for i in range(0, len(unique), self._room)]
        inside = _inside(keys, chunks, 0)
        demand = self._ask(layer, chunks[0], int(inside.sum()))
        self._wanted[layer] = _Wanted(len(row_ids), keys, places, chunks, demand)

    @property
    def _room(self) -> int:
        # each PLE layer's first chunk is held at once, from before the first layer on
        return self._pool.num_slots // len(self._stores)

    def _ask(self, layer: int, keys: np.ndarray, num_rows: int) -> Demand:
        event, position = self._step.event(layer), self._step.position
        num_bytes = num_rows * self._stores[layer].row_bytes
        return self._transfer.demand("ple", keys.tolist(), event, position=position, logical_bytes=num_bytes, num_rows=num_rows)

    def rows(self, layer: int) -> mx.array:
        """The announced rows, heads side by side: float32 `[T, ple_embed_dim]`."""
        wanted = self._wanted.pop(layer)
        store = self._stores[layer]
        values = np.empty((len(wanted.keys), store.row_width), dtype=np.float32)
        demand = wanted.demand
        for i, chunk in enumerate(wanted.chunks):
            inside = _inside(wanted.keys, wanted.chunks, i)
            if i:
                demand = self._ask(layer, chunk, int(inside.sum()))
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
