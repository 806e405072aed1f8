"""Limits of reads in flight: a depth for each queue of reads, and budgets for speculative classes."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from workbench.scheduling.ticket import Priority

SPECULATIVE = (Priority.P1, Priority.P2, Priority.P3)
"""Classes that have budgets."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Most that a class and all less urgent classes may have in flight together."""

    num_bytes: int
    slots: int
    """Slots being filled."""
    reads: int


@dataclass(frozen=True, kw_only=True)
class ReadLimits:
    """Limits of reads in flight. Each store has a queue of its own, so that neither store can starve the other."""

    depth: Mapping[str, int] = field(default_factory=lambda: {"expert": 32, "ple": 4096})
    """Most reads in flight, by queue."""
    budgets: Mapping[Priority, Budget] = field(
        default_factory=lambda: {
            Priority.P1: Budget(num_bytes=64 << 20, slots=32, reads=16),
            Priority.P2: Budget(num_bytes=32 << 20, slots=16, reads=8),
            Priority.P3: Budget(num_bytes=8 << 20, slots=4, reads=2),
        }
    )
    """Of each speculative class; a class counts less urgent classes too, so P2 can never fill what P1 may need."""

    def __post_init__(self) -> None:
        if set(self.budgets) != set(SPECULATIVE):
            raise ValueError("budgets are needed for P1, P2 and P3, and P0 has none")
        if min(self.depth.values(), default=0) < 1:
            raise ValueError(f"each queue needs a depth of at least 1, got {dict(self.depth)}")


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig:
    """Bounds of the scheduler."""

    limits: ReadLimits = field(default_factory=ReadLimits)
    queue_bounds: Mapping[Priority, int] = field(
        default_factory=lambda: {Priority.P1: 1024, Priority.P2: 1024, Priority.P3: 1024}
    )
    """Most reads that may wait in each speculative class; P0 is bounded by its slots."""
    max_attempts: int = 3
    """Failed reads of a demanded ticket before its demands fail."""


@dataclass(slots=True)
class _Use:
    num_bytes: int = 0
    slots: int = 0
    reads: int = 0


class InFlight:
    """Counts reads in flight and says whether one more read may start."""

    def __init__(self, limits: ReadLimits) -> None:
        self._depth = limits.depth
        self._num_reads = dict.fromkeys(limits.depth, 0)
        self._use = [_Use() for _ in Priority]
        self._budgets = sorted(limits.budgets.items())

    def use(self, priority: Priority) -> tuple[int, int, int]:
        """Bytes, slots and reads that a class has in flight."""
        use = self._use[priority]
        return use.num_bytes, use.slots, use.reads

    def fits(self, priority: Priority, num_bytes: int) -> bool:
        """Whether a read of this size could ever start."""
        return priority == Priority.P0 or all(
            budget.num_bytes >= num_bytes and budget.slots and budget.reads
            for above, budget in self._budgets
            if above <= priority
        )

    def admits(self, queue: str, priority: Priority, num_bytes: int, slots: int) -> bool:
        """Whether one read of `num_bytes` that fills `slots` new slots may start now."""
        if self._num_reads[queue] >= self._depth[queue]:
            return False
        if priority == Priority.P0:
            return True
        if priority == Priority.P3 and any(use.reads for use in self._use[: Priority.P3]):
            return False
        return all(self._below(above, num_bytes, slots, budget) for above, budget in self._budgets if above <= priority)

    def _below(self, priority: Priority, num_bytes: int, slots: int, budget: Budget) -> bool:
        uses = self._use[priority:]
        return (
            sum(use.num_bytes for use in uses) + num_bytes <= budget.num_bytes
            and sum(use.slots for use in uses) + slots <= budget.slots
            and sum(use.reads for use in uses) + 1 <= budget.reads
        )

    def add(self, queue: str, priority: Priority, num_bytes: int) -> None:
        """A read starts."""
        use = self._use[priority]
        self._num_reads[queue] += 1
        use.num_bytes += num_bytes
        use.reads += 1

    def remove(self, queue: str, priority: Priority, num_bytes: int) -> None:
        """A read has completed."""
        use = self._use[priority]
        self._num_reads[queue] -= 1
        use.num_bytes -= num_bytes
        use.reads -= 1

    def reclass(self, before: Priority, after: Priority, num_bytes: int) -> None:
        """The class of a read in flight changes."""
        for priority, sign in ((before, -1), (after, 1)):
            self._use[priority].num_bytes += sign * num_bytes
            self._use[priority].reads += sign

    def count_slots(self, priority: Priority, change: int) -> None:
        """Slots begin (positive) or cease (negative) to be filled."""
        self._use[priority].slots += change
