"""Reads that wait and reads that fly: the queue, the lanes, and which order a completion belongs to."""

from collections.abc import Mapping, Sequence

from workbench.scheduling.lanes import Lanes
from workbench.scheduling.pool import Pool
from workbench.scheduling.queue import Order, Queue
from workbench.scheduling.ticket import Priority, Ticket, TicketState


class Traffic:
    """Owns every order from push to landing. Reads of all pools share it, as they share the disk."""

    def __init__(self, pools: Mapping[str, Pool], lanes: Lanes, queue: Queue) -> None:
        self.pools = pools
        self.lanes = lanes
        self.queue = queue
        self._flying: dict[int, Order] = {}

    @property
    def flying(self) -> list[Order]:
        """Reads that the reader has, those of stale tickets too."""
        return list(self._flying.values())

    @property
    def num_flying(self) -> int:
        """How many they are."""
        return len(self._flying)

    def order(self, number: int) -> Order:
        """A read that the reader has. Raises KeyError on an unknown number."""
        return self._flying[number]

    def enqueue(self, pool: Pool, tickets: Sequence[Ticket]) -> None:
        """Plans become waiting reads: the first part of all tickets, then the second, as a wave consumes them."""
        for ticket in tickets:
            ticket.move(TicketState.QUEUED)
        for part in pool.parts:
            for ticket in tickets:
                logical_bytes, num_bytes = pool.sizes(ticket.key, part)
                ticket.logical_bytes += logical_bytes
                self._wait(Order(ticket, pool.lane, part, num_bytes))

    def has_room(self, pool: Pool, key: int, priority: Priority) -> bool:
        """Whether a predicted ticket may wait: its class has room, and its reads can fit the budgets at all."""
        fits = all(self.lanes.fits(priority, pool.sizes(key, part)[1]) for part in pool.parts)
        return fits and self.queue.has_room(priority, len(pool.parts))

    def head(self) -> Order | None:
        """The read that may go next."""
        return self.queue.head(self._may_go)

    def _may_go(self, order: Order) -> bool:
        return self.lanes.admits(order.lane, order.priority, order.num_bytes, slots=order.ticket.slot < 0)

    def start(self, order: Order, now_ns: int) -> None:
        """A waiting read takes off."""
        ticket, pool = order.ticket, self.pools[order.ticket.store]
        self.queue.remove(order)
        self.lanes.take(order.lane, order.priority, order.num_bytes)
        order.slot, order.generation = pool.slots.begin_read(ticket.key)
        order.issue_ns = now_ns
        self._flying[order.number] = order
        pool.counters.read_ops += 1
        if not ticket.reads_in_flight:
            ticket.move(TicketState.IN_FLIGHT)
        if not ticket.issued:
            ticket.issue_ns = now_ns
        ticket.reads_in_flight += 1
        ticket.physical_bytes += order.num_bytes

    def land(self, number: int) -> tuple[Order, bool]:
        """A read came back: its order, and whether its ticket still wants it. Raises KeyError on an unknown number."""
        order = self._flying.pop(number)
        self.lanes.give(order.lane, order.priority, order.num_bytes)
        order.ticket.orders.remove(order)
        order.ticket.reads_in_flight -= 1
        lives = self.pools[order.ticket.store].slots.end_read(order.slot, order.generation)
        return order, lives and not order.ticket.final

    def wait_again(self, order: Order) -> None:
        """A read that came back without its bytes waits for another turn."""
        if not order.ticket.reads_in_flight:
            order.ticket.move(TicketState.QUEUED)
        self._wait(order)

    def withdraw(self, ticket: Ticket) -> None:
        """Nothing of a ticket waits any more; what flies will land."""
        for order in [order for order in ticket.orders if order.waiting]:
            self.queue.remove(order)
            ticket.orders.remove(order)

    def settle(self, ticket: Ticket, slot: int, generation: int) -> None:
        """A ticket has its slot and counts against its class until `unsettle`."""
        ticket.slot, ticket.slot_generation = slot, generation
        self.lanes.count_slots(ticket.priority, 1)

    def unsettle(self, ticket: Ticket) -> None:
        """The slot of a ticket is no longer being filled."""
        if ticket.slot >= 0:
            self.lanes.count_slots(ticket.priority, -1)

    def reclass(self, ticket: Ticket, priority: Priority) -> None:
        """Another class for all reads of a ticket, those that fly included; a new place in the queue for those that wait."""
        before, ticket.priority = ticket.priority, priority
        if ticket.slot >= 0:
            self.lanes.count_slots(before, -1)
            self.lanes.count_slots(priority, 1)
        for order in ticket.orders:
            if order.waiting:
                self.queue.push(order)
            else:
                self.lanes.reclass(before, priority, order.num_bytes)
                order.priority = priority

    def _wait(self, order: Order) -> None:
        order.ticket.orders.append(order)
        self.queue.push(order)
