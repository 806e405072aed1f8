"""One store's share of the scheduler: its slots, its tickets, how a record is split into reads, its counters."""

import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from workbench.scheduling.slots import SlotTable
from workbench.scheduling.ticket import NEVER_NS, Demand, Intent, Ticket, TicketState, Usefulness

GATE_BIT, UP_BIT, DOWN_BIT = 1, 2, 4
GATE_UP_BITS = GATE_BIT | UP_BIT
RECORD_BITS = GATE_UP_BITS | DOWN_BIT
PAGE_BIT = 1

Sizes = Callable[[int, int], tuple[int, int]]
"""`(key, component bits) -> (logical bytes, bytes the read will move)`."""


@dataclass(slots=True)
class Counters:
    """Totals of one pool since it was made."""

    hits: int = 0
    joined: int = 0
    misses: int = 0
    protected: int = 0
    """Resident keys kept for a prediction."""
    promoted: int = 0
    """Predicted tickets that an exact demand took over before they were ready."""
    predicted: int = 0
    """Predicted tickets planned."""
    busy: int = 0
    """Keys refused for want of slots or queue."""
    read_ops: int = 0
    retries: int = 0
    cancelled: int = 0
    stale: int = 0
    failed: int = 0
    evictions: int = 0
    dropped: int = 0
    """Records dropped after one use."""
    evictions_by_false_prediction: int = 0
    used_on_time: int = 0
    used_late: int = 0
    unused: int = 0
    logical_bytes: int = 0
    physical_bytes: int = 0
    exact_bytes: int = 0
    """Logical bytes of exact tickets that were issued."""
    predicted_bytes: int = 0
    """Logical bytes of predicted tickets that were issued."""
    wasted_bytes: int = 0
    """Those of them that were never used."""

    @property
    def demand_bytes(self) -> int:
        """Exact bytes plus predicted bytes that were used."""
        return self.exact_bytes + self.predicted_bytes - self.wasted_bytes

    def count_demand(self, demand: Demand) -> None:
        """Counts the keys of a demand that was met or queued."""
        self.hits += len(demand.hits)
        self.joined += len(demand.joined)
        self.misses += len(demand.misses)

    def add(self, ticket: Ticket) -> None:
        """Counts a ticket that reached its final state."""
        match ticket.state:
            case TicketState.RELEASED:
                pass
            case TicketState.CANCELLED:
                self.cancelled += 1
            case TicketState.STALE:
                self.stale += 1
            case TicketState.FAILED:
                self.failed += 1
        match ticket.outcome:
            case Usefulness.USED_ON_TIME:
                self.used_on_time += 1
            case Usefulness.USED_LATE:
                self.used_late += 1
            case Usefulness.UNUSED:
                self.unused += 1
        if ticket.issued:
            self._add_bytes(ticket)

    def _add_bytes(self, ticket: Ticket) -> None:
        self.logical_bytes += ticket.logical_bytes
        self.physical_bytes += ticket.physical_bytes
        if ticket.intent is Intent.EXACT:
            self.exact_bytes += ticket.logical_bytes
            return
        self.predicted_bytes += ticket.logical_bytes
        if ticket.outcome in (None, Usefulness.UNUSED, Usefulness.FAILED):
            self.wasted_bytes += ticket.logical_bytes
            self.evictions_by_false_prediction += ticket.num_evicted


@dataclass(slots=True, eq=False)
class Pool:
    """Slots of one store. `parts` splits a record's component bits into reads, in the order they should arrive."""

    name: str
    """Name of the pool: `expert`, `ple` or `layer`."""
    digest: str
    """SHA-256 of the store's payload."""
    slots: SlotTable
    sizes: Sizes
    parts: tuple[int, ...] = (PAGE_BIT,)
    queue: str = ""
    """Queue in which reads of the pool wait; empty: a queue of the pool's own, under its name."""
    counters: Counters = field(default_factory=Counters)
    tickets: dict[int, Ticket] = field(default_factory=dict)
    """Incomplete tickets, by key: at most one per key."""
    unused: dict[int, Ticket] = field(default_factory=dict)
    """Predicted tickets that are complete and unused."""

    on_final: Callable[[Ticket], None] | None = None
    """Called once with each ticket that reached its final state (for events and metrics)."""
    on_gone: Callable[[Iterable[int]], None] | None = None
    """Called with resident keys that have left their slots."""

    all_bits: int = field(init=False)
    """Component bits of a whole record."""

    def __post_init__(self) -> None:
        self.all_bits = functools.reduce(operator.or_, self.parts)
        self.queue = self.queue or self.name

    def evicted(self, keys: Sequence[int], ticket: Ticket | None = None) -> None:
        """Accounts for keys that left, for the sake of `ticket` when that was predicted."""
        self.counters.evictions += len(keys)
        if ticket is not None:
            ticket.num_evicted += len(keys)
        self._gone(keys)

    def drop(self, key: int) -> None:
        """Removes a resident key from its slot, unless a demand pins the key."""
        if self.slots.drop(key):
            self.counters.dropped += 1
            self._gone([key])

    def moved(self, moves: Mapping[int, tuple[int, int]]) -> None:
        """Accounts for keys that lie in another slot now, by key the old one and the new one."""
        for key in moves.keys() & self.unused.keys():
            ticket = self.unused[key]
            ticket.slot, ticket.slot_generation = moves[key][1], self.slots.generation(moves[key][1])
        if self.on_gone is not None:
            self.on_gone(moves)

    def _gone(self, keys: Sequence[int]) -> None:
        if self.on_gone is not None and keys:
            self.on_gone(keys)
        for key in keys:
            if (unused := self.unused.pop(key, None)) is not None:
                self.close(unused, TicketState.RELEASED)

    def close(self, ticket: Ticket, state: TicketState) -> None:
        """Moves a ticket to its final state and accounts for it, once."""
        ticket.move(state)
        if self.tickets.get(ticket.key) is ticket:
            del self.tickets[ticket.key]
        if state is TicketState.FAILED:
            ticket.outcome = Usefulness.FAILED
        elif ticket.issued and (ticket.outcome is None or ticket.ready_ns == NEVER_NS):
            # also where compute had asked: bytes of a ticket that is given up are never used
            ticket.outcome = Usefulness.UNUSED
        self.counters.add(ticket)
        if self.on_final is not None:
            self.on_final(ticket)
