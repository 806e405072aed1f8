"""Reads that wait for the reader and reads in flight. Four classes, most urgent first, then by deadline, then by number."""

import heapq
import itertools
from collections.abc import Callable, Mapping, Sequence

from workbench.scheduling.limits import InFlight
from workbench.scheduling.pool import Pool
from workbench.scheduling.ticket import Order, Priority, Ticket, TicketState

_SLACK = 64
"""Void entries that a heap may keep beyond the number of waiting orders before it is swept."""


class ReadQueue:
    """Waiting orders by class and queue."""

    def __init__(self, bounds: Mapping[Priority, int]) -> None:
        """`bounds`: most orders that may wait in each class; P0's is bounded by its slots already."""
        self._bounds = dict(bounds)
        self._heaps: list[dict[str, list[tuple[int, int, Order]]]] = [{} for _ in Priority]
        self._waiting = [0 for _ in Priority]
        self.num_waiting = 0
        """Orders that wait, of all classes."""
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return self.num_waiting

    def waiting(self, priority: Priority) -> int:
        """Orders that wait in a class."""
        return self._waiting[priority]

    def has_room(self, priority: Priority, count: int = 1) -> bool:
        """Whether `count` more orders may wait in a class."""
        bound = self._bounds.get(priority)
        return bound is None or self._waiting[priority] + count <= bound

    def push(self, order: Order) -> None:
        """Queues an order in the class of its ticket, under a new number; an earlier entry of the order becomes void."""
        if order.waiting:
            self._count(order, -1)
        order.number, order.priority, order.waiting = next(self._numbers), order.ticket.priority, True
        self._count(order, 1)
        heap = self._heaps[order.priority].setdefault(order.queue, [])
        if len(heap) > 2 * self._waiting[order.priority] + _SLACK:
            heap[:] = [entry for entry in heap if _is_valid(entry)]
            heapq.heapify(heap)
        heapq.heappush(heap, (order.ticket.deadline_ns, order.number, order))

    def remove(self, order: Order) -> None:
        """Takes an order out, to be submitted or withdrawn."""
        if order.waiting:
            order.waiting = False
            self._count(order, -1)

    def _count(self, order: Order, change: int) -> None:
        self._waiting[order.priority] += change
        self.num_waiting += change

    def head(self, may_start: Callable[[Order], bool]) -> Order | None:
        """The order to submit next; None when no order waits or when the most urgent class can't start yet.

        A class never overtakes a more urgent class that waits, in whatever queue.
        """
        if not self.num_waiting:
            return None
        most_urgent, best = 0, None
        while not self._waiting[most_urgent]:
            most_urgent += 1
        for heap in self._heaps[most_urgent].values():
            while heap and not _is_valid(heap[0]):
                heapq.heappop(heap)
            if heap and (best is None or heap[0] < best) and may_start(heap[0][2]):
                best = heap[0]
        return best and best[2]


def _is_valid(entry: tuple[int, int, Order]) -> bool:
    """Whether a heap entry is the latest one of an order that still waits."""
    _, number, order = entry
    return order.waiting and order.number == number


class Reads:
    """Owns every order from its ticket's plan to its completion. Reads of all pools share it, as they share the disk."""

    def __init__(self, pools: Mapping[str, Pool], in_flight: InFlight, queue: ReadQueue) -> None:
        self.pools = pools
        self.queue = queue
        self.in_flight = in_flight
        self._submitted: dict[int, Order] = {}

    @property
    def submitted(self) -> list[Order]:
        """Orders at the reader, those of stale tickets too."""
        return list(self._submitted.values())

    @property
    def num_in_flight(self) -> int:
        """How many orders are at the reader."""
        return len(self._submitted)

    def order(self, number: int) -> Order:
        """The order at the reader with this number. Raises KeyError on an unknown number."""
        return self._submitted[number]

    def enqueue(self, pool: Pool, tickets: Sequence[Ticket]) -> None:
        """Makes and queues the orders of new tickets: the first part of all tickets, then the second, as waves use them."""
        for ticket in tickets:
            ticket.move(TicketState.QUEUED)
        for part in pool.parts:
            for ticket in tickets:
                logical_bytes, num_bytes = pool.sizes(ticket.key, part)
                ticket.logical_bytes += logical_bytes
                self._push(Order(ticket, pool.queue, part, num_bytes))

    def has_room(self, pool: Pool, key: int, priority: Priority) -> bool:
        """Whether a predicted ticket may wait: its class has room, and the budgets can ever fit its reads."""
        fits = all(self.in_flight.fits(priority, pool.sizes(key, part)[1]) for part in pool.parts)
        return fits and self.queue.has_room(priority, len(pool.parts))

    def head(self) -> Order | None:
        """The order to submit next."""
        return self.queue.head(self._may_start)

    def _may_start(self, order: Order) -> bool:
        return self.in_flight.admits(order.queue, order.priority, order.num_bytes, slots=order.ticket.slot < 0)

    def begin_read(self, order: Order, now_ns: int) -> None:
        """Moves a waiting order to the reads in flight."""
        ticket, pool = order.ticket, self.pools[order.ticket.store]
        self.queue.remove(order)
        self.in_flight.add(order.queue, order.priority, order.num_bytes)
        order.slot, order.generation = pool.slots.begin_read(ticket.key)
        order.issue_ns = now_ns
        self._submitted[order.number] = order
        pool.counters.read_ops += 1
        if not ticket.reads_in_flight:
            ticket.move(TicketState.IN_FLIGHT)
        if not ticket.issued:
            ticket.issue_ns = now_ns
        ticket.reads_in_flight += 1
        ticket.physical_bytes += order.num_bytes

    def complete(self, number: int) -> tuple[Order, bool]:
        """Ends a read, whatever its result: its order, and whether its ticket still wants it.

        Raises KeyError on an unknown number.
        """
        order = self._submitted.pop(number)
        self.in_flight.remove(order.queue, order.priority, order.num_bytes)
        order.ticket.orders.remove(order)
        order.ticket.reads_in_flight -= 1
        owns_slot = self.pools[order.ticket.store].slots.end_read(order.slot, order.generation)
        return order, owns_slot and not order.ticket.final

    def requeue(self, order: Order) -> None:
        """Queues an order again whose read brought no bytes."""
        if not order.ticket.reads_in_flight:
            order.ticket.move(TicketState.QUEUED)
        self._push(order)

    def withdraw(self, ticket: Ticket) -> None:
        """Removes the waiting orders of a ticket; its reads in flight will complete."""
        for order in [order for order in ticket.orders if order.waiting]:
            self.queue.remove(order)
            ticket.orders.remove(order)

    def assign_slot(self, ticket: Ticket, slot: int, generation: int) -> None:
        """Gives a ticket its slot, which counts against the ticket's class until `end_filling`."""
        ticket.slot, ticket.slot_generation = slot, generation
        self.in_flight.count_slots(ticket.priority, 1)

    def end_filling(self, ticket: Ticket) -> None:
        """Ends the filling of a ticket's slot, if the ticket has one."""
        if ticket.slot >= 0:
            self.in_flight.count_slots(ticket.priority, -1)

    def reclass(self, ticket: Ticket, priority: Priority) -> None:
        """Changes the class of all orders of a ticket, in flight or waiting; a waiting order gets a new heap entry."""
        before, ticket.priority = ticket.priority, priority
        if ticket.slot >= 0:
            self.in_flight.count_slots(before, -1)
            self.in_flight.count_slots(priority, 1)
        for order in ticket.orders:
            if order.waiting:
                self.queue.push(order)
            else:
                self.in_flight.reclass(before, priority, order.num_bytes)
                order.priority = priority

    def _push(self, order: Order) -> None:
        order.ticket.orders.append(order)
        self.queue.push(order)
