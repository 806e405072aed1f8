"""Tickets: one owned request for one identity (a record or a page), with everything a report may ask about it."""

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from workbench.scheduling.demand import Demand
    from workbench.scheduling.queue import Order

NEVER_NS = (1 << 63) - 1
"""Deadline of what has none, and the time of what has not happened."""
WHOLE_TILE = -1
"""Token mask of a prompt's tile, which is longer than any mask."""
_MASK_BITS = 62
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


class Outcome(StrEnum):
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
    LEASED = "leased"
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
    TicketState.READY: (TicketState.LEASED, TicketState.RELEASED),
    TicketState.LEASED: (TicketState.RELEASED,),
}
FINAL_STATES = frozenset(state for state in TicketState if state not in _STEPS)
"""States in which a ticket owns nothing any more."""


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

    def event(self, layer: int) -> "Event":
        """The demands of `layer` in this pass."""
        mask = (1 << self.num_tokens) - 1 if self.num_tokens <= _MASK_BITS else WHOLE_TILE
        return Event(request=self.request, phase=self.phase, layer=layer, position=self.position, token_mask=mask)


class Event(NamedTuple):
    """What asks: a token's top-k of one layer, a block's union, a token's pages, or a prediction of one of these.

    A named tuple: each layer of each pass makes one, and a frozen dataclass takes four times as long to make.
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


@dataclass(slots=True, eq=False)
class Ticket:
    """One owned request for one identity. Scheduler and transfer alone write to it. Times are nanoseconds of their clock."""

    number: int
    store: str
    """Name of the pool it fills: `expert` or `ple`."""
    digest: str
    """SHA-256 of the store's payload."""
    key: int
    """Identity within the store: `layer * num_experts + expert`, or a page."""
    intent: Intent
    planned_priority: Priority
    """Class in which the ticket was planned."""
    priority: Priority
    """Class in which the ticket is now."""
    event: Event
    """Request, phase, layer and tokens that planned it."""
    generation: int
    """Epoch of that request when it was planned."""
    confidence: float
    token_mask: int
    """Tokens of the block that need it, by the request that planned it."""
    deadline_ns: int
    """The event's, or an earlier one of a demand that joined."""
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
    leases: int = 0
    """Open demands that hold it."""
    num_demands: int = 0
    """Demands that ever held it."""
    owner: int | None = None
    """Request of the first demand that held it."""
    predictor: str = ""
    """Name of the predictor that planned it; empty: a demand did."""
    demanded: bool = False
    """An exact demand asked for it: it was planned as exact, or it was predicted and then promoted."""
    completion: int = -1
    """Position in the order of completions."""
    outcome: Outcome | None = None
    cause: Exception | None = None
    num_evicted: int = 0
    """Records that had to leave for it."""
    orders: list["Order"] = field(default_factory=list, repr=False)
    """Reads that wait in the queue."""
    demands: list["Demand"] = field(default_factory=list, repr=False)
    predictors: set[int] = field(default_factory=set, repr=False)
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
        """When the last of `components`, which are all there, came."""
        return max([ready_ns for part, ready_ns in self.arrivals.items() if part & components])

    def ask(self, now_ns: int, components: int = -1) -> bool:
        """Compute asks for `components` (bits, all by default): whether some are missing. The first call fixes the outcome."""
        missing = not self.has(components)
        if self.outcome is None:
            self.asked_ns = now_ns
            self.outcome = Outcome.USED_LATE if missing else Outcome.USED_ON_TIME
        return missing

    def move(self, state: TicketState) -> None:
        """Takes one step of its life. Raises ValueError on a step that doesn't exist."""
        if state not in _STEPS.get(self.state, ()):
            raise ValueError(f"ticket {self.number} of {self.store} {self.key} can't go from {self.state} to {state}")
        self.state = state
