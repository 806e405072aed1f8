"""Limits of predicted reads by priority class: bytes, slots and reads in flight; for live runs and the twin."""

from pydantic import Field

from workbench.config import Config
from workbench.scheduling.limits import SPECULATIVE, Budget
from workbench.scheduling.ticket import Priority
from workbench.units import MIB


class ClassBudget(Config):
    """Limits that the reads of one priority class share with all less urgent classes."""

    num_bytes: int = Field(ge=0)
    """Most bytes in flight."""
    slots: int = Field(ge=0)
    """Most slots being filled; also the most predicted resident records that are protected from eviction."""
    reads: int = Field(ge=0)
    """Most reads in flight."""


class ClassBudgets(Config):
    """Budgets of speculative reads; exact reads (P0) have none."""

    p1: ClassBudget = ClassBudget(num_bytes=64 * MIB, slots=32, reads=16)
    """Predicted reads with a deadline within the current layer."""
    p2: ClassBudget = ClassBudget(num_bytes=32 * MIB, slots=16, reads=8)
    """Predicted reads for later layers or tokens."""
    p3: ClassBudget = ClassBudget(num_bytes=8 * MIB, slots=4, reads=2)
    """Background prefetch of a hot set."""

    @property
    def by_class(self) -> dict[Priority, Budget]:
        """The limits by priority class, as the scheduler's `Budget`."""
        made = zip(SPECULATIVE, (self.p1, self.p2, self.p3), strict=True)
        return {priority: Budget(num_bytes=each.num_bytes, slots=each.slots, reads=each.reads) for priority, each in made}
