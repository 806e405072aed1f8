"""What predictions may take: budgets of bytes, slots and reads by class, in the configuration of live runs and of the twin."""

from pydantic import Field

from workbench.config import Config
from workbench.scheduling.limits import SPECULATIVE, Budget
from workbench.scheduling.ticket import Priority
from workbench.units import MIB


class ClassBudget(Config):
    """Most that reads of a class and of all classes below it may take at once."""

    num_bytes: int = Field(ge=0)
    """Bytes in flight."""
    slots: int = Field(ge=0)
    """Slots being filled; as many resident records may be protected."""
    reads: int = Field(ge=0)
    """Reads in flight."""


class ClassBudgets(Config):
    """Budgets of speculative reads; exact reads (P0) have none."""

    p1: ClassBudget = ClassBudget(num_bytes=64 * MIB, slots=32, reads=16)
    """Predicted, expected within the current layer."""
    p2: ClassBudget = ClassBudget(num_bytes=32 * MIB, slots=16, reads=8)
    """Predicted, later layers or tokens."""
    p3: ClassBudget = ClassBudget(num_bytes=8 * MIB, slots=4, reads=2)
    """Background warming."""

    @property
    def by_class(self) -> dict[Priority, Budget]:
        """The budgets by class, in the scheduler's type."""
        made = zip(SPECULATIVE, (self.p1, self.p2, self.p3), strict=True)
        return {priority: Budget(num_bytes=each.num_bytes, slots=each.slots, reads=each.reads) for priority, each in made}
