"""What the twin reads: records and pages that have sizes and cost the host time, and no bytes."""

from dataclasses import dataclass

from workbench.policies import make
from workbench.readers.base import Read
from workbench.readers.clock import VirtualClock
from workbench.scheduling.pool import RECORD_BITS, Pool, Sizes
from workbench.scheduling.slots import SlotTable
from workbench.scheduling.ticket import Order
from workbench.units import PAGE_BYTES, align_down, align_up

_NO_BYTES = memoryview(bytearray(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedSource:
    """Reads that move nothing; what each costs the thread that computes passes on the clock."""

    clock: VirtualClock
    ask_ns: int
    """Before a read is submitted."""
    take_ns: int
    """When its completion is seen."""

    def read(self, order: Order) -> Read:
        """The read of an order, without memory."""
        if self.ask_ns:
            self.clock.sleep_until(self.clock.now_ns() + self.ask_ns)
        return Read(order.number, 0, 0, order.num_bytes, _NO_BYTES)

    def arrived(self, order: Order) -> None:
        """A completion is seen."""
        if self.take_ns:
            self.clock.sleep_until(self.clock.now_ns() + self.take_ns)


def record_pool(*, num_slots: int, policy: str, record_bytes: int, num_experts: int) -> Pool:
    """Slots of records that lie back to back in layers of `num_experts`, each layer on a page; whole pages are moved."""

    starts = [expert * record_bytes for expert in range(num_experts)]
    moved = [align_up(start + record_bytes, PAGE_BYTES) - align_down(start, PAGE_BYTES) for start in starts]
    return _pool("expert", num_slots, policy, lambda key, bits: (record_bytes, moved[key % num_experts]), RECORD_BITS)


def page_pool(*, num_slots: int, policy: str) -> Pool:
    """Slots of n-gram pages."""
    return _pool("ple", num_slots, policy, lambda key, bits: (PAGE_BYTES, PAGE_BYTES), 1)


def _pool(name: str, num_slots: int, policy: str, sizes: Sizes, bits: int) -> Pool:
    slots = SlotTable(num_slots, make(policy, capacity=num_slots))
    return Pool(name=name, digest="", slots=slots, sizes=sizes, parts=(bits,))
