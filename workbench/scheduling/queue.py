"""The queue of reads that wait: four classes, most urgent first, then by deadline, then in the order they came. Bounded."""

import heapq
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from workbench.scheduling.ticket import Priority, Ticket


@dataclass(slots=True, eq=False)
class Order:
    """One read of a ticket: the components in `bits`, into `slot`. Readers name it by `number`."""

    ticket: Ticket
    lane: str
    bits: int
    num_bytes: int
    """Bytes that the read is expected to move."""
    number: int = -1
    """Unique; a new one at each push."""
    priority: Priority = Priority.P3
    waiting: bool = False
    slot: int = -1
    generation: int = -1
    """Generation of the slot that may publish."""
    issue_ns: int = -1


class Queue:
    """Waiting orders by class and lane."""

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
        """Whether `count` more may wait in a class."""
        bound = self._bounds.get(priority)
        return bound is None or self._waiting[priority] + count <= bound

    def push(self, order: Order) -> None:
        """Puts an order in the class of its ticket, under a new number; an earlier place of it is void."""
        if order.waiting:
            self._count(order, -1)
        order.number, order.priority, order.waiting = next(self._numbers), order.ticket.priority, True
        self._count(order, 1)
        heap = self._heaps[order.priority].setdefault(order.lane, [])
        if len(heap) > 2 * self._waiting[order.priority] + _SLACK:
            heap[:] = [place for place in heap if _holds(place)]
            heapq.heapify(heap)
        heapq.heappush(heap, (order.ticket.deadline_ns, order.number, order))

    def remove(self, order: Order) -> None:
        """Takes an order out, to be issued or withdrawn."""
        if order.waiting:
            order.waiting = False
            self._count(order, -1)

    def _count(self, order: Order, change: int) -> None:
        self._waiting[order.priority] += change
        self.num_waiting += change

    def head(self, may_go: Callable[[Order], bool]) -> Order | None:
        """The order that goes next; None when nothing waits or when the most urgent class can't go yet.

        A class never overtakes a more urgent one that waits, in whatever lane.
        """
        if not self.num_waiting:
            return None
        most_urgent, best = 0, None
        while not self._waiting[most_urgent]:
            most_urgent += 1
        for heap in self._heaps[most_urgent].values():
            while heap and not _holds(heap[0]):
                heapq.heappop(heap)
            if heap and (best is None or heap[0] < best) and may_go(heap[0][2]):
                best = heap[0]
        return best and best[2]


_SLACK = 64
"""Void places that a heap may keep; beyond that and the number of waiting orders they are swept out."""


def _holds(place: tuple[int, int, Order]) -> bool:
    """Whether the order still waits in this place."""
    _, number, order = place
    return order.waiting and order.number == number
