"""The cache policy protocol: a policy ranks the resident records and names victims. It knows keys, not slots or bytes.

Access is event-atomic: a token's whole top-k of one layer (or the union of a block of tokens) is one event, and its records
must be resident together. The owner of the slots calls, for each event and in this order: `start_event()`, `touch(hits)`,
`admit(misses)` and `evict(overflow, protected)` with the event's keys protected. Evicting before admitting is allowed too;
ARC and S3-FIFO then adapt to a miss one eviction later than their papers do. A prefetched record is admitted when an event
first uses it: a prefetch does not count as a use, and an unused prefetch does not change the policy.
"""

from abc import ABC, abstractmethod
from collections.abc import Container, Sequence
from typing import ClassVar


class Policy(ABC):
    """Ranks resident keys. One object serves one cache; live runtime and replay use the same classes."""

    name: ClassVar[str]
    """Name in configurations and tables."""

    def __init__(self, capacity: int) -> None:
        """A policy for a cache of `capacity` records. Raises ValueError when `capacity` is below 1."""
        if capacity < 1:
            raise ValueError(f"a cache holds at least one record, got capacity {capacity}")
        self.capacity = capacity

    @abstractmethod
    def start_event(self) -> None:
        """Starts the next event; ages are counted in events."""

    @abstractmethod
    def touch(self, keys: Sequence[int]) -> None:
        """Records that this event uses the resident `keys` (distinct, in rank order)."""

    @abstractmethod
    def admit(self, keys: Sequence[int]) -> None:
        """Makes `keys` (distinct, not resident, in rank order) resident and records that this event uses them."""

    @abstractmethod
    def evict(self, count: int, protected: Container[int]) -> list[int]:
        """Removes `count` resident keys, none of them in `protected`, and returns them, worst first.

        Raises ValueError when fewer than `count` resident keys are unprotected; the policy must not be used afterwards.
        """

    @abstractmethod
    def forget(self, key: int) -> None:
        """Removes resident `key` for another reason than eviction: its read failed, or its slot was reclaimed."""


def too_few(count: int, name: str) -> ValueError:
    """The error of an `evict` that finds fewer than `count` unprotected residents."""
    return ValueError(f"{name}: fewer than {count} residents are unprotected")
