"""Waits: what a generator yields where it can't go on without bytes or slots."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from workbench.loading.joint import JointDemand
from workbench.scheduling.ticket import Demand, Origin

T = TypeVar("T")
Loading = Generator["Wait", None, T]
"""Work that needs bytes: yields waits, returns a result."""


def no_pieces() -> bool:
    """Of work that dispatches nothing: there is no piece to wait for."""
    return False


@dataclass(slots=True, eq=False)
class Wait:
    """What a generator waits for: a stage of a demand whose bytes are there, or (without a demand) slots."""

    demand: Demand | JointDemand | None
    find: Callable[[], list[int] | None]
    """The stage that can run now; None while the bytes of none are there."""
    keys: Sequence[int] = ()
    """Keys that compute would take now: those that complete first, or `all_of_them`."""
    all_of_them: bool = False
    sync_piece: Callable[[], bool] = no_pieces
    """Returns when the oldest piece of compute that this work dispatched is done; False when there is none."""
    stage: list[int] | None = None
    """The stage that `find` returned: keys that compute uses next; None before."""
    exposed_ns: int = 0
    """Time that compute stood still for it."""

    def is_ready(self) -> bool:
        """Whether the work can go on: its stage was found."""
        if self.stage is None:
            self.stage = self.find()
        return self.stage is not None

    @property
    def failures(self) -> list[Demand]:
        """Demands that can't be met."""
        return self.demand.failures if self.demand is not None else []

    @property
    def origin(self) -> Origin:
        """Of the demand. Raises ValueError on a wait for slots."""
        if self.demand is None:
            raise ValueError("a wait for slots has no event")
        return self.demand.origin

    def ask(self, now_ns: int) -> int:
        """Compute asks for the keys: reads that are still to complete."""
        if self.demand is None:
            return 0
        missing = self.demand.missing(now_ns, self.keys)
        return sum([len(ticket.orders) for ticket in missing]) if self.all_of_them else len(missing)


def first_over(waits: Sequence[Wait]) -> Wait | None:
    """The first wait that is ready or can't be met."""
    for wait in waits:
        if wait.is_ready() or wait.failures:
            return wait
    return None
