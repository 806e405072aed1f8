"""Nouns of the scheduler: the origin of a demand, tickets and their reads, demands and predictions."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Literal, NamedTuple

NEVER_NS = (1 << 63) - 1
"""Deadline of what has none, and the time of what has not happened."""
WHOLE_TILE = -1
"""Token mask of a prompt's tile, which is longer than any mask."""
MASK_BITS = 62
"""Most tokens of a mask: masks are int64 in events."""


class Intent(StrEnum):
    """Why a read was planned."""

    EXACT = "exact"
    """Demanded by the native router or by known tokens."""
    PREDICTED = "predicted"
    """Something guessed that it will be demanded."""


class Priority(IntEnum):
    """Class of a ticket: the lower the number, the more urgent."""

    P0 = 0
    """Exact."""
    P1 = 1
    """Predicted, deadline inside the current layer."""
    P2 = 2
    """Predicted, later layers or tokens."""
    P3 = 3
    """Background warming."""


class Usefulness(StrEnum):
    """What became of the bytes of a ticket."""

    USED_ON_TIME = "used_on_time"
    USED_LATE = "used_late"
    UNUSED = "unused"
    FAILED = "failed"


class TicketState(StrEnum):
    """Life of a ticket; `Ticket.move` allows only the steps of `_STEPS`."""

    PLANNED = "planned"
    QUEUED = "queued"
    IN_FLIGHT = "in_flight"
    READY = "ready"
    PINNED = "pinned"
    RELEASED = "released"
    CANCELLED = "cancelled"
    """Withdrawn while no read was in flight."""
    FAILED = "failed"
    STALE = "stale"
    """Its generation died while a read was in flight: the read may finish, nothing is published."""


_STEPS: dict[TicketState, tuple[TicketState, ...]] = {
    TicketState.PLANNED: (TicketState.QUEUED,),
    TicketState.QUEUED: (TicketState.IN_FLIGHT, TicketState.CANCELLED),
    TicketState.IN_FLIGHT: (TicketState.READY, TicketState.QUEUED, TicketState.FAILED, TicketState.STALE),
    TicketState.READY: (TicketState.PINNED, TicketState.RELEASED),
    TicketState.PINNED: (TicketState.RELEASED,),
}
FINAL_STATES = frozenset(state for state in TicketState if state not in _STEPS)
"""States in which a ticket owns nothing any more."""


class Origin(NamedTuple):
    """What asks: a token's top-k of one layer, a block's union, a token's pages, or a prediction of one of these.

    A named tuple, which is cheaper to make than a frozen dataclass: each layer of each pass makes one.
    """

    request: int
    phase: str = "decode"
    """prefill, decode or verify."""
    layer: int = -1
    position: int = -1
    """Of the first token of the pass, in its sequence."""
    token_mask: int = 1
    """Bit t: token t of the block needs it; `WHOLE_TILE`: a prompt's tile does."""
    deadline_ns: int = NEVER_NS
    """When compute is expected to ask for it."""

    @property
    def place(self) -> tuple[int, int]:
        """In its sequence: position, then layer."""
        return self.position, self.layer


@dataclass(frozen=True, slots=True)
class Scope:
    """Who computes: one pass of one request."""

    request: int
    phase: str
    """prefill, decode or verify."""
    position: int
    """Of the first token of the pass, in its sequence."""
    num_tokens: int = 1
    """Tokens of the pass."""

    def origin(self, layer: int) -> Origin:
        """The demands of `layer` in this pass."""
        mask = (1 << self.num_tokens) - 1 if self.num_tokens <= MASK_BITS else WHOLE_TILE
        return Origin(request=self.request, phase=self.phase, layer=layer, position=self.position, token_mask=mask)


@dataclass(slots=True, eq=False)
class Ticket:
    """One owned request for one identity. Scheduler and transfer alone write to it. Times are nanoseconds of their clock."""

    number: int
    store: str
    """Name of the pool that the ticket fills: `expert`, `ple` or `layer`."""
    digest: str
    """SHA-256 of the store's payload."""
    key: int
    """Identity within the store: `layer * num_experts + expert`, or a page."""
    intent: Intent
    planned_priority: Priority
    """Class in which the ticket was planned."""
    priority: Priority
    """Class in which the ticket is now."""
    origin: Origin
    """Request, phase, layer and tokens that planned it."""
    generation: int
    """Epoch of that request when it was planned."""
    confidence: float
    token_mask: int
    """Tokens of the block that need it, by the request that planned it."""
    deadline_ns: int
    """When compute is expected to ask for the key: the origin's deadline, or the earlier one of a demand that joined."""
    wanted: int
    """Component bits of the whole record; 1 for a page."""
    submit_ns: int
    logical_bytes: int = 0
    """Bytes of the record or page, once it is queued."""
    physical_bytes: int = 0
    """Bytes that reads moved for it, alignment and retries included."""
    issue_ns: int = NEVER_NS
    ready_ns: int = NEVER_NS
    """When the last byte was there, by the reader's stamp."""
    seen_ns: int = NEVER_NS
    """When the thread that computes learnt of it."""
    asked_ns: int = NEVER_NS
    """When compute first asked for it."""
    state: TicketState = TicketState.PLANNED
    slot: int = -1
    slot_generation: int = -1
    ready_bits: int = 0
    """Components whose bytes are in the slot."""
    arrivals: dict[int, int] = field(default_factory=dict, repr=False)
    """When each part, by its component bits, was there."""
    reads_in_flight: int = 0
    queue_depth: int | None = None
    """Reads in flight when its last read was submitted."""
    read_calls: float = 0.0
    """Calls that its reads took, a part of one where several reads shared it."""
    attempts: int = 0
    """Reads beyond the first one of each part."""
    num_pins: int = 0
    """Open demands that pin the ticket."""
    num_demands: int = 0
    """Demands that ever pinned the ticket."""
    owner: int | None = None
    """Request of the first demand that held it."""
    predictor: str = ""
    """Name of the predictor that planned it; empty: a demand did."""
    demanded: bool = False
    """An exact demand asked for it: it was planned as exact, or it was predicted and then promoted."""
    completion: int = -1
    """Position in the order of completions."""
    outcome: Usefulness | None = None
    cause: Exception | None = None
    num_evicted: int = 0
    """Records that had to leave for it."""
    orders: list["Order"] = field(default_factory=list, repr=False)
    """Reads of the ticket that have not completed: waiting or in flight."""
    demands: list["Demand"] = field(default_factory=list, repr=False)
    predicting_requests: set[int] = field(default_factory=set, repr=False)
    """Requests that predicted it and have not cancelled; empty once it is demanded."""

    @property
    def final(self) -> bool:
        """Whether it owns nothing any more."""
        return self.state in FINAL_STATES

    @property
    def issued(self) -> bool:
        """Whether any read was ever issued for it."""
        return self.physical_bytes > 0

    def has(self, components: int = -1) -> bool:
        """Whether `components` (bits, all by default) are there."""
        return not self.wanted & components & ~self.ready_bits

    def arrival_ns(self, components: int) -> int:
        """When the last read of `components`, all complete, was ready."""
        return max([ready_ns for part, ready_ns in self.arrivals.items() if part & components])

    def ask(self, now_ns: int, components: int = -1) -> bool:
        """Compute asks for `components` (bits, all by default): whether some are missing. The first call fixes the outcome."""
        missing = not self.has(components)
        if self.outcome is None:
            self.asked_ns = now_ns
            self.outcome = Usefulness.USED_LATE if missing else Usefulness.USED_ON_TIME
        return missing

    def move(self, state: TicketState) -> None:
        """Takes one step of its life. Raises ValueError on a step that doesn't exist."""
        if state not in _STEPS.get(self.state, ()):
            raise ValueError(f"ticket {self.number} of {self.store} {self.key} can't go from {self.state} to {state}")
        self.state = state


@dataclass(slots=True, eq=False)
class Order:
    """One read of a ticket: the components in `bits`, into `slot`. Readers name it by `number`."""

    ticket: Ticket
    queue: str
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


# ---- what is asked for ------------------------------------------------------------------------------------------------

WaveSize = Literal["barrier", 1, 2, 4, "all"]
"""Fewest missing records of a demand that compute takes together as they arrive; barrier: none before all are there."""


class RequestStatus(StrEnum):
    """Result of a demand or a prefetch."""

    DONE = "done"
    """Nothing has to be read."""
    QUEUED = "queued"
    BUSY = "busy"
    """Refused, nothing changed: complete or release something first."""


@dataclass(slots=True, eq=False)
class Demand:
    """Keys that one layer of one pass needs. The slot of a key may change until the key is ready; read it afterwards."""

    store: str
    origin: Origin
    generation: int
    """Epoch of the request when it asked."""
    status: RequestStatus = RequestStatus.DONE
    hits: list[int] = field(default_factory=list)
    """Keys whose bytes were all there."""
    joined: list[int] = field(default_factory=list)
    """Keys whose ticket existed already."""
    misses: list[int] = field(default_factory=list)
    """Keys that got a new ticket."""
    slots: dict[int, int] = field(default_factory=dict)
    """Slot of each key that the demand pins."""
    tickets: dict[int, Ticket] = field(default_factory=dict)
    """Ticket of each key that was not resident, and of each hit that a prediction had brought."""
    error: Exception | None = None
    """Why it can't be met; the request must give up."""
    open: bool = True

    @property
    def failures(self) -> "list[Demand]":
        """The demand itself, when it can't be met."""
        return [self] if self.error is not None else []

    def have(self, keys: Iterable[int], components: int = -1) -> bool:
        """Whether `components` (bits) of all of `keys` are there; does not mark the keys as used."""
        # a plain loop: this is asked several times for each missing record
        tickets = self.tickets
        for key in keys:
            ticket = tickets.get(key)
            if ticket is not None and ticket.wanted & components & ~ticket.ready_bits:
                return False
        return True

    def missing(self, now_ns: int, keys: Iterable[int] | None = None, components: int = -1) -> list[Ticket]:
        """The smallest set of tickets that guards `components` (bits) of `keys` (all by default).

        The first call for a key is the moment when compute asked for it: it decides whether the ticket was on time.
        Raises the demand's error when it can't be met.
        """
        if self.error is not None:
            raise self.error
        tickets, missing = self.tickets, []
        for key in tickets if keys is None else keys:
            ticket = tickets.get(key)
            if ticket is not None and ticket.ask(now_ns, components):
                missing.append(ticket)
        return missing


@dataclass(frozen=True, slots=True)
class PredictedKey:
    """One key that a predictor expects to be demanded."""

    key: int
    probability: float = 1.0
    """That it will be demanded."""
    token_mask: int = 1
    """Bit t: token t of the block is expected to need it."""
    deadline_ns: int = NEVER_NS
    """When compute is expected to ask for it; `NEVER_NS`: at the deadline of the origin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefetchResult:
    """What became of predicted keys: tickets planned or joined, resident keys protected, keys refused."""

    status: RequestStatus
    tickets: tuple[Ticket, ...] = ()
    num_planned: int = 0
    """Tickets that are new."""
    protected: tuple[int, ...] = ()
    """Resident keys that are kept until their layer asks for them, as long as no exact key needs their slots."""
    refused: tuple[int, ...] = ()
