"""Least recently used: the control for all other policies."""

from collections import OrderedDict
from collections.abc import Container, Sequence
from itertools import islice

from workbench.policies.base import Policy, too_few


class Lru(Policy):
    """Evicts the least recently used record; among records last used by the same event, the one ranked first."""

    name = "lru"

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._by_recency: OrderedDict[int, None] = OrderedDict()

    def start_event(self) -> None:
        """Does nothing: recency is an order of keys, without a clock."""

    def touch(self, keys: Sequence[int]) -> None:
        """See `Policy.touch`."""
        move_to_end = self._by_recency.move_to_end
        for key in keys:
            move_to_end(key)

    def admit(self, keys: Sequence[int]) -> None:
        """See `Policy.admit`."""
        for key in keys:
            self._by_recency[key] = None

    def evict(self, count: int, protected: Container[int]) -> list[int]:
        """See `Policy.evict`."""
        victims = list(islice((key for key in self._by_recency if key not in protected), count))
        if len(victims) < count:
            raise too_few(count, self.name)
        for key in victims:
            del self._by_recency[key]
        return victims

    def forget(self, key: int) -> None:
        """See `Policy.forget`."""
        del self._by_recency[key]
