"""What a cache policy is: it ranks the records that are resident and names victims. It knows keys, not slots or bytes.

Access is event-atomic: a token's whole top-k of one layer (or a block's union) is one event, and its records must be
resident together. An owner of slots calls, for each event and in this order: `start_event()`, `touch(hits)`,
`admit(misses)` and `evict(overflow, protected)` with the event's keys protected. Making room first and admitting
afterwards is legal too; ARC and S3-FIFO then adapt to a miss one eviction later than their papers do. A record that was
predicted is admitted when an event first uses it: a prediction is no use, and one that is wasted leaves no trace.
"""

from abc import ABC, abstractmethod
from collections.abc import Container, Sequence
from typing import ClassVar


class Policy(ABC):
    """Ranks resident keys. One object serves one cache; live runtime and replay use the same classes."""

    name: ClassVar[str]
    """Name in configurations and tables."""

    def __init__(self, capacity: int) -> None:
        """For a cache of `capacity` records."""
        if capacity < 1:
            raise ValueError(f"a cache holds at least one record, got capacity {capacity}")
        self.capacity = capacity

    @abstractmethod
    def start_event(self) -> None:
        """The next event begins; ages count in events."""

    @abstractmethod
    def touch(self, keys: Sequence[int]) -> None:
        """Resident `keys` (distinct) are used by this event, in rank order."""

    @abstractmethod
    def admit(self, keys: Sequence[int]) -> None:
        """`keys` (distinct, not resident) become resident and are used by this event, in rank order."""

    @abstractmethod
    def evict(self, count: int, protected: Container[int]) -> list[int]:
        """Removes `count` residents, none of them in `protected`, and returns them, worst first.

        Raises ValueError when fewer than `count` residents are unprotected; the policy is of no use afterwards.
        """

    @abstractmethod
    def forget(self, key: int) -> None:
        """Resident `key` is gone for another reason: its read failed, its slot was taken back."""


def too_few(count: int, name: str) -> ValueError:
    """The error of an `evict` that can't find `count` unprotected residents: its owner protected too much."""
    return ValueError(f"{name}: fewer than {count} residents are unprotected")
