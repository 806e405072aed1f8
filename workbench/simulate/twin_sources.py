"""Read sources and pools of the twin: records and pages with sizes and CPU costs, but without bytes."""

from dataclasses import dataclass

from workbench.loading.pages import LAYER_SHIFT
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
    """A source of reads that move no bytes; it advances the clock by the CPU cost of each read."""

    clock: VirtualClock
    ask_ns: int
    """CPU time per read before its submission, nanoseconds."""
    take_ns: int
    """CPU time per read at its completion, nanoseconds."""

    def read(self, order: Order) -> Read:
        """Makes the read of an order, without memory, `ask_ns` later."""
        if self.ask_ns:
            self.clock.sleep_until(self.clock.now_ns() + self.ask_ns)
        return Read(order.number, 0, 0, order.num_bytes, _NO_BYTES)

    def arrived(self, order: Order) -> None:
        """Advances the clock by `take_ns`; called when the completion of `order` is polled."""
        if self.take_ns:
            self.clock.sleep_until(self.clock.now_ns() + self.take_ns)


def record_pool(*, num_slots: int, policy: str, record_bytes: int, num_experts: int) -> Pool:
    """The pool of record slots. Records are stored back to back, each layer aligned to a page; reads move whole pages."""

    starts = [expert * record_bytes for expert in range(num_experts)]
    moved = [align_up(start + record_bytes, PAGE_BYTES) - align_down(start, PAGE_BYTES) for start in starts]
    return _pool(
        "expert", num_slots, policy, lambda key, bits: (record_bytes, moved[key % num_experts]), RECORD_BITS, num_experts
    )


def page_pool(*, num_slots: int, policy: str) -> Pool:
    """The pool of n-gram page slots."""
    return _pool("ple", num_slots, policy, lambda key, bits: (PAGE_BYTES, PAGE_BYTES), 1, 1 << LAYER_SHIFT)


def _pool(name: str, num_slots: int, policy: str, sizes: Sizes, bits: int, keys_per_layer: int) -> Pool:
    slots = SlotTable(num_slots, make(policy, capacity=num_slots, offered={"num_experts": keys_per_layer}))
    return Pool(name=name, digest="", slots=slots, sizes=sizes, parts=(bits,))
