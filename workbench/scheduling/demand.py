"""A demand: the exact keys of one event, held together from routing until their use has been evaluated."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from workbench.scheduling.ticket import NEVER_NS, Event, Ticket

WaveSize = Literal["barrier", 1, 2, 4, "all"]
"""Fewest missing records of a demand that compute takes together as they arrive; barrier: none before all are there."""


class Answer(StrEnum):
    """What a bounded queue says."""

    DONE = "done"
    """Nothing has to be read."""
    QUEUED = "queued"
    BUSY = "busy"
    """Refused, nothing changed: complete or release something first."""


@dataclass(slots=True, eq=False)
class Demand:
    """Keys that one event of one request needs. `slots` may change until a key is ready; read it afterwards."""

    store: str
    event: Event
    generation: int
    """Epoch of the request when it asked."""
    answer: Answer = Answer.DONE
    hits: list[int] = field(default_factory=list)
    """Keys whose bytes were all there."""
    joined: list[int] = field(default_factory=list)
    """Keys whose ticket existed already."""
    misses: list[int] = field(default_factory=list)
    """Keys that got a new ticket."""
    slots: dict[int, int] = field(default_factory=dict)
    """Slot of each key that this demand holds."""
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
    """When compute is expected to ask for it; `NEVER_NS`: when its event says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What became of predicted keys: tickets planned or joined, resident keys protected, keys refused."""

    answer: Answer
    tickets: tuple[Ticket, ...] = ()
    num_planned: int = 0
    """Tickets that are new."""
    protected: tuple[int, ...] = ()
    """Resident keys that are kept until their layer asks for them, as long as no exact key needs their slots."""
    refused: tuple[int, ...] = ()
