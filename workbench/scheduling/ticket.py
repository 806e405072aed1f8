"""Nouns of the scheduler: the origin of a demand, tickets and their reads, demands and predictions."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Annotated, Literal, NamedTuple

from workbench.config import WORD_OR_INTEGER

NEVER_NS = (1 << 63) - 1
"""Deadline of a ticket without one, and time of an event that has not happened."""
WHOLE_TILE = -1
"""Token mask of a prompt's tile, which is longer than any mask."""
MASK_BITS = 62
"""Most tokens of a mask: masks are int64 in events."""


class Intent(StrEnum):
    """Why a read was planned."""

    EXACT = "exact"
    """Demanded by the native router or by known tokens."""
    PREDICTED = "predicted"
    """Predicted: a predictor or the warming of a hot set planned the read."""


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
    """Whether the bytes of a ticket were used, and in time."""

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
    """Given up while a read was in flight: the read may complete, but nothing is published."""


_STEPS: dict[TicketState, tuple[TicketState, ...]] = {
    TicketState.PLANNED: (TicketState.QUEUED,),
    TicketState.QUEUED: (TicketState.IN_FLIGHT, TicketState.CANCELLED),
    TicketState.IN_FLIGHT: (TicketState.READY, TicketState.QUEUED, TicketState.FAILED, TicketState.STALE),
    TicketState.READY: (TicketState.PINNED, TicketState.RELEASED),
    TicketState.PINNED: (TicketState.RELEASED,),
}
FINAL_STATES = frozenset(state for state in TicketState if state not in _STEPS)
"""Final states: the ticket owns no slot and no read."""


class Origin(NamedTuple):
    """Requester of keys: a token's top-k of one layer, a block's union, a token's pages, or a prediction of one of these.

    A named tuple, which is cheaper to make than a frozen dataclass: each layer of each pass makes one.
    """

    request: int
    phase: str = "decode"
    """prefill, decode or verify."""
    layer: int = -1
    position: int = -1
    """Position of the pass's first token in its sequence."""
    token_mask: int = 1
    """Bit t: token t of the block needs the keys; `WHOLE_TILE`: a prompt's tile does."""
    deadline_ns: int = NEVER_NS
    """When compute is expected to ask for the keys."""

    @property
    def point(self) -> tuple[int, int]:
        """Point of the sequence: position, then layer."""
        return self.position, self.layer


@dataclass(frozen=True, slots=True)
class Scope:
    """One pass of one request."""

    request: int
    phase: str
    """prefill, decode or verify."""
    position: int
    """Position of the pass's first token in its sequence."""
    num_tokens: int = 1
    """Number of tokens in the pass."""

    def origin(self, layer: int) -> Origin:
        """Origin of the demands of `layer` in this pass."""
        mask = (1 << self.num_tokens) - 1 if self.num_tokens <= MASK_BITS else WHOLE_TILE
        return Origin(request=self.request, phase=self.phase, layer=layer, position=self.position, token_mask=mask)


@dataclass(slots=True, eq=False)
class Ticket:
    """The load of one key into one slot. Scheduler and transfer alone write to it. Times are nanoseconds of their clock."""

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
    """Request, phase, layer and tokens that planned the ticket."""
    generation: int
    """Epoch of that request when the ticket was planned."""
    confidence: float
    token_mask: int
    """Tokens of the block that need the key, in the request that planned the ticket."""
    deadline_ns: int
    """When compute is expected to ask for the key: the origin's deadline, or the earlier one of a demand that joined."""
    wanted: int
    """Component bits of the whole record; 1 for a page."""
    submit_ns: int
    logical_bytes: int = 0
    """Bytes of the record or page; set when the ticket is queued."""
    physical_bytes: int = 0
    """Bytes moved by the ticket's reads, alignment and retries included."""
    issue_ns: int = NEVER_NS
    ready_ns: int = NEVER_NS
    """When the last read completed, by the reader's timestamp."""
    seen_ns: int = NEVER_NS
    """When the compute thread handled the completion."""
    asked_ns: int = NEVER_NS
    """When compute first asked for the key."""
    state: TicketState = TicketState.PLANNED
    slot: int = -1
    slot_generation: int = -1
    ready_bits: int = 0
    """Components whose bytes are in the slot."""
    arrivals: dict[int, int] = field(default_factory=dict, repr=False)
    """Completion time of each part, by its component bits."""
    reads_in_flight: int = 0
    queue_depth: int | None = None
    """Reads in flight when the ticket's last read was submitted."""
    read_calls: float = 0.0
    """System calls of the ticket's reads; a fraction where several reads shared one."""
    attempts: int = 0
    """Reads beyond the first one of each part."""
    num_pins: int = 0
    """Open demands that pin the ticket."""
    num_demands: int = 0
    """Demands that ever pinned the ticket."""
    owner: int | None = None
    """Request of the first demand that pinned the ticket."""
    predictor: str = ""
    """Name of the predictor that planned the ticket; empty: a demand did."""
    demanded: bool = False
    """Whether an exact demand uses the ticket: planned as exact, or predicted and then promoted."""
    completion: int = -1
    """Position in the order of completions."""
    outcome: Usefulness | None = None
    cause: Exception | None = None
    num_evicted: int = 0
    """Keys evicted for the ticket's slot."""
    orders: list["Order"] = field(default_factory=list, repr=False)
    """Reads of the ticket that have not completed: waiting or in flight."""
    demands: list["Demand"] = field(default_factory=list, repr=False)
    predicting_requests: set[int] = field(default_factory=set, repr=False)
    """Requests that predicted the key and have not cancelled; empty once the key is demanded."""

    @property
    def final(self) -> bool:
        """Whether the state is final."""
        return self.state in FINAL_STATES

    @property
    def issued(self) -> bool:
        """Whether any read of the ticket was ever issued."""
        return self.physical_bytes > 0

    def has(self, components: int = -1) -> bool:
        """Whether `components` (bits, all by default) are complete."""
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
        """Changes the state. Raises ValueError on a step that `_STEPS` lacks."""
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
    """Generation of the slot in which the read may publish."""
    issue_ns: int = -1


# ---- what is asked for ------------------------------------------------------------------------------------------------

WaveSize = Annotated[Literal["barrier", 1, 2, 4, "all"], WORD_OR_INTEGER]
"""Fewest missing records that one wave computes together as reads complete; barrier: no wave before all are complete."""


class RequestStatus(StrEnum):
    """Result of a demand or a prefetch."""

    DONE = "done"
    """Nothing has to be read."""
    QUEUED = "queued"
    BUSY = "busy"
    """Refused, and nothing changed: complete reads or release demands first."""


@dataclass(slots=True, eq=False)
class Demand:
    """Keys that one layer of one pass needs. The slot of a key may change until the key is ready; read it afterwards."""

    store: str
    origin: Origin
    generation: int
    """Epoch of the request at the demand."""
    status: RequestStatus = RequestStatus.DONE
    hits: list[int] = field(default_factory=list)
    """Keys that were resident."""
    joined: list[int] = field(default_factory=list)
    """Keys whose ticket existed already."""
    misses: list[int] = field(default_factory=list)
    """Keys that got a new ticket."""
    slots: dict[int, int] = field(default_factory=dict)
    """Slot of each key that the demand pins."""
    tickets: dict[int, Ticket] = field(default_factory=dict)
    """Ticket of each key that was not resident, and of each hit that a prediction had brought."""
    error: Exception | None = None
    """Error of a read that failed for good: the request must be cancelled."""
    open: bool = True

    @property
    def failures(self) -> "list[Demand]":
        """The demand itself, when one of its reads has failed for good."""
        return [self] if self.error is not None else []

    def have(self, keys: Iterable[int], components: int = -1) -> bool:
        """Whether `components` (bits) of all of `keys` are complete; does not mark the keys as used."""
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
    """Probability that the key is demanded."""
    token_mask: int = 1
    """Bit t: token t of the block is expected to need the key."""
    deadline_ns: int = NEVER_NS
    """When compute is expected to ask for the key; `NEVER_NS`: at the deadline of the origin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefetchResult:
    """Result of a prefetch: tickets planned or joined, resident keys protected, keys refused."""

    status: RequestStatus
    tickets: tuple[Ticket, ...] = ()
    num_planned: int = 0
    """New tickets."""
    protected: tuple[int, ...] = ()
    """Resident keys, protected until their layer asks for them unless an exact key needs their slots."""
    refused: tuple[int, ...] = ()
