"""A demand: the exact keys of one event, held together from routing until their use has been evaluated."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from workbench.scheduling.ticket import Event, Ticket

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

    def have(self, keys: Iterable[int], components: int = -1) -> bool:
        """Whether `components` (bits) of all of `keys` are there. Nobody asks: it decides nothing about tickets."""
        tickets = (self.tickets.get(key) for key in keys)
        return all(ticket is None or ticket.has(components) for ticket in tickets)

    def missing(self, now_ns: int, keys: Iterable[int] | None = None, components: int = -1) -> list[Ticket]:
        """The smallest set of tickets that guards `components` (bits) of `keys` (all by default).

        The first call for a key is the moment when compute asked for it: it decides whether the ticket was on time.
        Raises the demand's error when it can't be met.
        """
        if self.error is not None:
            raise self.error
        asked = self.tickets.values() if keys is None else [self.tickets[key] for key in keys if key in self.tickets]
        return [ticket for ticket in asked if ticket.ask(now_ns, components)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What became of predicted keys: tickets planned or joined, keys refused; keys already there are in neither."""

    answer: Answer
    tickets: tuple[Ticket, ...] = ()
    refused: tuple[int, ...] = ()
