"""How layers are cut into chunks: runs of records, back to back, that are read as one extent into one place of the chunk buffer.

All chunks have the same lead-in, so a record has the same position in every place that its chunk may get.
"""

import math
from dataclasses import dataclass, replace
from typing import Protocol

from workbench.geometry import COMPONENTS
from workbench.readers.base import Buffer, Checksum, Read
from workbench.scheduling.ticket import Order
from workbench.stores.expert_major import ExpertStore
from workbench.units import MIB, PAGE_BYTES, align_up

_CHUNK_BYTES = 16 * MIB
"""Wanted size of a chunk: large enough to be read at the disk's sequential rate, small enough that others are read meanwhile."""
_PLACES = 8
"""Wanted number of places of a small buffer: chunks get shorter to reach it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A layer of `num_experts` records in chunks of `length`, in a buffer of `num_places`."""

    num_experts: int
    length: int
    record_bytes: int
    lead_in: int
    """Bytes between the start of a chunk's window and its first record."""
    num_places: int

    @property
    def place_bytes(self) -> int:
        """Bytes of a place: the window of a whole chunk."""
        return align_up(self.lead_in + self.length * self.record_bytes, PAGE_BYTES)

    @property
    def per_layer(self) -> int:
        """Chunks of a layer."""
        return -(-self.num_experts // self.length)

    def experts(self, index: int) -> range:
        """Experts of a layer's chunk."""
        return range(index * self.length, min((index + 1) * self.length, self.num_experts))


def cut_layers(store: ExpertStore, ring_bytes: int) -> Cut:
    """Chunk sizes of a store's layers for a buffer of `ring_bytes`; a buffer too small for two chunks has no place."""
    first = store.record(store.layers[0].layer, 0)
    whole = math.lcm(first.num_bytes, PAGE_BYTES) // first.num_bytes
    length = store.num_experts
    if whole < length:
        wanted = min(_CHUNK_BYTES, ring_bytes // _PLACES) // first.num_bytes
        length = min(max(whole, wanted // whole * whole), length)
    # layers start on pages of the store, so what holds for the first one holds for all
    cut = Cut(
        num_experts=store.num_experts,
        length=length,
        record_bytes=first.num_bytes,
        lead_in=first.offset % PAGE_BYTES,
        num_places=0,
    )
    places = ring_bytes // cut.place_bytes
    return replace(cut, num_places=places if places > 1 else 0)


class ChunkBuffers(Protocol):
    """Memory in one piece, made of slots."""

    def offset(self, slot: int) -> int:
        """Bytes from the start of the memory to a slot."""

    def memory(self, start: int, num_bytes: int) -> Buffer:
        """Writable, page-aligned memory from `start` on."""


class ChunkSource:
    """Makes the reads of chunks. The key of a chunk is `layer index * per_layer + index of the chunk in its layer`."""

    def __init__(
        self, store: ExpertStore, memory: ChunkBuffers, first_slot: int, cut: Cut, file: int, *, checksums: bool
    ) -> None:
        self.cut = cut
        self._store, self._memory, self._file, self._checksums = store, memory, file, checksums
        self._first = memory.offset(first_slot)

    def keys(self, layer: int) -> range:
        """The chunks of a layer, in the order of the file."""
        return range(layer * self.cut.per_layer, (layer + 1) * self.cut.per_layer)

    def records(self, key: int) -> range:
        """Keys of the records in a chunk."""
        layer, index = divmod(key, self.cut.per_layer)
        experts = self.cut.experts(index)
        return range(layer * self.cut.num_experts + experts.start, layer * self.cut.num_experts + experts.stop)

    def chunk(self, record: int) -> int:
        """The chunk that holds a record."""
        layer, expert = divmod(record, self.cut.num_experts)
        return layer * self.cut.per_layer + expert // self.cut.length

    def record_start(self, place: int, position: int) -> int:
        """Bytes from the start of the memory to the record at `position` in the chunk in `place`."""
        return self._place(place) + self.cut.lead_in + position * self.cut.record_bytes

    def sizes(self, key: int, bits: int) -> tuple[int, int]:
        """Bytes of a chunk's records, and bytes that its read moves."""
        num_bytes = len(self.records(key)) * self.cut.record_bytes
        return num_bytes, align_up(self.cut.lead_in + num_bytes, PAGE_BYTES)

    def arrived(self, order: Order) -> None:
        """Does nothing: experts are computed on the chunk in place."""

    def read(self, order: Order) -> Read:
        """The read of one chunk into its place."""
        layer, index = divmod(order.ticket.key, self.cut.per_layer)
        experts = self.cut.experts(index)
        num_bytes, window_bytes = self.sizes(order.ticket.key, order.bits)
        low = self._store.record(layer, experts[0]).offset - self.cut.lead_in
        return Read(
            key=order.number,
            file=self._file,
            offset=low,
            num_bytes=window_bytes,
            into=self._memory.memory(self._place(order.slot), window_bytes),
            queue=order.queue,
            need_bytes=self.cut.lead_in + num_bytes,
            checksums=self._sums(layer, experts, low) if self._checksums else (),
        )

    def _place(self, place: int) -> int:
        return self._first + place * self.cut.place_bytes

    def _sums(self, layer: int, experts: range, low: int) -> tuple[Checksum, ...]:
        sums = []
        for expert in experts:
            for name in COMPONENTS:
                crc = self._store.crc32(layer, expert, name)
                extent = self._store.component(layer, expert, name)
                sums += [Checksum(extent.offset - low, extent.num_bytes, crc)] if crc is not None else []
        return tuple(sums)
