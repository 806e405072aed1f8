"""Reads of expert records: page-aligned windows around a record or its components, into the slots of a pool."""

from collections.abc import Sequence

from workbench.geometry import COMPONENTS
from workbench.readers.base import Checksum, Read
from workbench.runtime.pool import RecordPool
from workbench.scheduling.queue import Order
from workbench.stores.expert_major import ExpertStore
from workbench.stores.extents import Extent
from workbench.units import PAGE_BYTES, align_down, align_up

_NAMES = [tuple(name for i, name in enumerate(COMPONENTS) if bits >> i & 1) for bits in range(1 << len(COMPONENTS))]


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
