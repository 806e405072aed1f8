"""Reads of expert records: page-aligned windows around a record or its components, into the slots of a pool."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from workbench.geometry import COMPONENTS
from workbench.readers.base import Buffer, Checksum, Read
from workbench.scheduling.pool import RECORD_BITS
from workbench.scheduling.ticket import Order
from workbench.stores.expert_major import ExpertStore
from workbench.stores.extents import Extent
from workbench.units import PAGE_BYTES, align_down, align_up

_NAMES = [tuple(name for i, name in enumerate(COMPONENTS) if bits >> i & 1) for bits in range(1 << len(COMPONENTS))]
"""Components by their bits."""


@dataclass(frozen=True, slots=True)
class _Span:
    """Some components of a record, in bytes from its start."""

    extents: tuple[Extent, ...]
    first: int
    end: int
    num_bytes: int
    """Bytes of the components alone, without alignment."""

    @classmethod
    def of(cls, store: ExpertStore, layer: int, bits: int) -> "_Span":
        extents = tuple(store.component_in_record(layer, name) for name in _NAMES[bits])
        return cls(extents, extents[0].offset, extents[-1].end, sum(extent.num_bytes for extent in extents))


class RecordBuffers(Protocol):
    """Slots for the page-aligned windows around records."""

    def window(self, slot: int, num_bytes: int) -> Buffer:
        """Writable, page-aligned memory of `slot` for a window of `num_bytes`."""

    def arrived(self, slot: int, start: int, names: Sequence[str]) -> None:
        """Called when the components `names` of a record, `start` bytes into the window of `slot`, are complete."""


class RecordSource:
    """Makes the reads of records. A record keeps its offset within a page in its slot: no bytes are copied after the read."""

    def __init__(self, store: ExpertStore, memory: RecordBuffers, file: int, *, checksums: bool) -> None:
        self._store, self._memory, self._file, self._checksums = store, memory, file, checksums
        self._num_experts = store.num_experts
        self._starts = {
            layer.layer * self._num_experts + expert: store.record(layer.layer, expert).offset
            for layer in store.layers
            for expert in range(self._num_experts)
        }
        self._known_sums: dict[tuple[int, int], tuple[Checksum, ...]] = {}
        self._spans = {
            (layer.layer, bits): _Span.of(store, layer.layer, bits) for layer in store.layers for bits in range(1, len(_NAMES))
        }

    def lead_in(self, key: int) -> int:
        """Bytes between the start of a record's window and the record."""
        return self._starts[key] % PAGE_BYTES

    def sizes(self, key: int, bits: int) -> tuple[int, int]:
        """Bytes of the components in `bits`, and bytes that their read moves."""
        span = self._spans[key // self._num_experts, bits]
        low, high = self._window(key, span)
        return span.num_bytes, high - low

    def arrived(self, order: Order) -> None:
        """Called when the bytes of an order are in its slot."""
        self._memory.arrived(order.slot, self.lead_in(order.ticket.key), _NAMES[order.bits])

    def read(self, order: Order) -> Read:
        """The read of an order's components into its slot."""
        key = order.ticket.key
        start, span = self._starts[key], self._spans[key // self._num_experts, order.bits]
        low, high = self._window(key, span)
        base = align_down(start, PAGE_BYTES)
        return Read(
            key=order.number,
            file=self._file,
            offset=low,
            num_bytes=high - low,
            into=self._memory.window(order.slot, high - base)[low - base :],
            queue=order.queue,
            need_bytes=start + span.end - low,
            checksums=self._sums(order, span, start - low) if self._checksums else (),
            # in one call with down, gate+up would complete as late as a whole record
            alone=order.bits != RECORD_BITS,
        )

    def _window(self, key: int, span: _Span) -> tuple[int, int]:
        start = self._starts[key]
        return align_down(start + span.first, PAGE_BYTES), align_up(start + span.end, PAGE_BYTES)

    def _sums(self, order: Order, span: _Span, shift: int) -> tuple[Checksum, ...]:
        place = order.ticket.key, order.bits
        if (known := self._known_sums.get(place)) is not None:
            return known
        layer, expert = divmod(order.ticket.key, self._num_experts)
        sums = ((e, self._store.crc32(layer, expert, name)) for e, name in zip(span.extents, _NAMES[order.bits], strict=True))
        made = tuple(Checksum(shift + extent.offset, extent.num_bytes, crc) for extent, crc in sums if crc is not None)
        self._known_sums[place] = made
        return made
