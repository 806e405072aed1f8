"""Lanes and budgets: how many reads of each kind may be in flight, and how much of that may be speculation."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from workbench.scheduling.ticket import Priority

SPECULATIVE = (Priority.P1, Priority.P2, Priority.P3)
"""Classes that have budgets."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Most that a class and all classes below it may have in flight together."""

    num_bytes: int
    slots: int
    """Slots being filled."""
    lanes: int
    """Reads."""


@dataclass(frozen=True, kw_only=True)
class LaneConfig:
    """Reads in flight. Each kind of store has lanes of its own, so that neither can starve the other."""

    depth: Mapping[str, int] = field(default_factory=lambda: {"expert": 32, "ple": 4096})
    """Most reads in flight by kind."""
    budgets: Mapping[Priority, Budget] = field(
        default_factory=lambda: {
            Priority.P1: Budget(num_bytes=64 << 20, slots=32, lanes=16),
            Priority.P2: Budget(num_bytes=32 << 20, slots=16, lanes=8),
            Priority.P3: Budget(num_bytes=8 << 20, slots=4, lanes=2),
        }
    )
    """Of each speculative class; a class counts what is less urgent too, so P2 can never fill what P1 may need."""

    def __post_init__(self) -> None:
        if set(self.budgets) != set(SPECULATIVE):
            raise ValueError("budgets are needed for P1, P2 and P3, and P0 has none")
        if min(self.depth.values(), default=0) < 1:
            raise ValueError(f"each lane needs a depth of at least 1, got {dict(self.depth)}")


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig:
    """Bounds of the scheduler."""

    lanes: LaneConfig = field(default_factory=LaneConfig)
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
    lanes: int = 0


class Lanes:
    """Counts what is in flight and says whether one read more may go."""

    def __init__(self, config: LaneConfig) -> None:
        self.config = config
        self._lanes = dict.fromkeys(config.depth, 0)
        self._use = [_Use() for _ in Priority]
        self._budgets = sorted(config.budgets.items())

    def in_flight(self, lane: str) -> int:
        """Reads in flight in one kind of lane."""
        return self._lanes[lane]

    def use(self, priority: Priority) -> tuple[int, int, int]:
        """Bytes, slots and reads that a class has in flight."""
        use = self._use[priority]
        return use.num_bytes, use.slots, use.lanes

    @property
    def busy(self) -> bool:
        """Whether anything more urgent than P3 is in flight."""
        return any(use.lanes for use in self._use[: Priority.P3])

    def fits(self, priority: Priority, num_bytes: int) -> bool:
        """Whether a read of this size could ever go."""
        return priority == Priority.P0 or all(
            budget.num_bytes >= num_bytes and budget.slots and budget.lanes
            for above, budget in self._budgets
            if above <= priority
        )

    def admits(self, lane: str, priority: Priority, num_bytes: int, slots: int) -> bool:
        """Whether one read of `num_bytes` that takes `slots` new slots may go now."""
        if self._lanes[lane] >= self.config.depth[lane]:
            return False
        if priority == Priority.P0:
            return True
        if priority == Priority.P3 and self.busy:
            return False
        return all(self._below(above, num_bytes, slots, budget) for above, budget in self._budgets if above <= priority)

    def _below(self, priority: Priority, num_bytes: int, slots: int, budget: Budget) -> bool:
        uses = self._use[priority:]
        return (
            sum(use.num_bytes for use in uses) + num_bytes <= budget.num_bytes
            and sum(use.slots for use in uses) + slots <= budget.slots
            and sum(use.lanes for use in uses) + 1 <= budget.lanes
        )

    def take(self, lane: str, priority: Priority, num_bytes: int) -> None:
        """One read goes."""
        use = self._use[priority]
        self._lanes[lane] += 1
        use.num_bytes += num_bytes
        use.lanes += 1

    def give(self, lane: str, priority: Priority, num_bytes: int) -> None:
        """One read came back."""
        use = self._use[priority]
        self._lanes[lane] -= 1
        use.num_bytes -= num_bytes
        use.lanes -= 1

    def reclass(self, before: Priority, after: Priority, num_bytes: int) -> None:
        """A read in flight changed its class."""
        for priority, sign in ((before, -1), (after, 1)):
            self._use[priority].num_bytes += sign * num_bytes
            self._use[priority].lanes += sign

    def count_slots(self, priority: Priority, change: int) -> None:
        """Slots begin (positive) or cease (negative) to be filled."""
        self._use[priority].slots += change
