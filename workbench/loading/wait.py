"""Waits: yielded by a generator that needs bytes or slots."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from workbench.loading.joint import JointDemand
from workbench.scheduling.ticket import Demand, Origin

T = TypeVar("T")
Loading = Generator["Wait", None, T]
"""Work that needs bytes: yields waits, returns a result."""


def no_pieces() -> bool:
    """`Wait.sync_piece` of work that dispatches no compute."""
    return False


@dataclass(slots=True, eq=False)
class Wait:
    """What a generator waits for: keys of a demand whose reads must complete, or (without a demand) slots."""

    demand: Demand | JointDemand | None
    find_ready_keys: Callable[[], list[int] | None]
    """Returns the keys that can be computed now; None while their reads have not completed."""
    keys: Sequence[int] = ()
    """Keys that compute needs next: the first to complete, or `all_of_them`."""
    all_of_them: bool = False
    sync_piece: Callable[[], bool] = no_pieces
    """Syncs the oldest piece of compute that the work dispatched; False when there is none."""
    ready_keys: list[int] | None = None
    """Keys that `find_ready_keys` returned; None before."""
    exposed_ns: int = 0
    """Exposed wait so far, nanoseconds."""

    def is_ready(self) -> bool:
        """Whether the generator can be resumed."""
        if self.ready_keys is None:
            self.ready_keys = self.find_ready_keys()
        return self.ready_keys is not None

    @property
    def failures(self) -> list[Demand]:
        """Demands that have failed."""
        return self.demand.failures if self.demand is not None else []

    @property
    def origin(self) -> Origin:
        """Origin of the demand. Raises ValueError on a wait for slots."""
        if self.demand is None:
            raise ValueError("a wait for slots has no origin")
        return self.demand.origin

    def mark_asked(self, now_ns: int) -> int:
        """Marks the keys as asked for by compute; returns how many reads are still missing."""
        if self.demand is None:
            return 0
        missing = self.demand.missing(now_ns, self.keys)
        return sum([len(ticket.orders) for ticket in missing]) if self.all_of_them else len(missing)


def first_ended(waits: Sequence[Wait]) -> Wait | None:
    """The first wait that is ready or has failed."""
    for wait in waits:
        if wait.is_ready() or wait.failures:
            return wait
    return None
