"""Belady's rule (IBM Systems Journal, 1966), which needs the future: a lower bound for the misses of every policy."""

import heapq
from collections.abc import Container, Sequence

from workbench.policies.base import Policy, too_few

_NEVER = 1 << 62


class Belady(Policy):
    """Evicts the record whose next use is furthest in the future; among equals, the lower key first.

    The rule stays optimal for events of several keys: among all ways to hold each event's records together in `capacity`
    slots, none has fewer misses. (Exchange argument: take any schedule that evicts another record, and alter it to keep the
    record needed sooner. The altered schedule copies the original step by step until that record is used, a hit instead of a
    miss, and both then reach the same residents at no greater cost. Records of one event are needed equally soon, so their
    order is free.) The rule is no bound for caches that may serve a miss without admitting the record.
    """

    name = "belady"

    def __init__(self, capacity: int, events: Sequence[Sequence[int]]) -> None:
        """`events`: the keys of all future events, in the order in which `start_event` will be called."""
        super().__init__(capacity)
        self._event = -1
        self._uses_backwards: dict[int, list[int]] = {}
        for index in range(len(events) - 1, -1, -1):
            for key in events[index]:
                self._uses_backwards.setdefault(key, []).append(index)
        self._next_use: dict[int, int] = {}
        self._latest_first: list[tuple[int, int]] = []

    def start_event(self) -> None:
        """See `Policy.start_event`."""
        self._event += 1

    def touch(self, keys: Sequence[int]) -> None:
        """See `Policy.touch`."""
        for key in keys:
            uses = self._uses_backwards.get(key, [])
            while uses and uses[-1] <= self._event:
                uses.pop()
            next_use = uses[-1] if uses else _NEVER
            self._next_use[key] = next_use
            heapq.heappush(self._latest_first, (-next_use, key))

    def admit(self, keys: Sequence[int]) -> None:
        """See `Policy.admit`."""
        self.touch(keys)

    def evict(self, count: int, protected: Container[int]) -> list[int]:
        """See `Policy.evict`."""
        victims: list[int] = []
        spared: dict[int, tuple[int, int]] = {}
        while len(victims) < count and self._latest_first:
            entry = heapq.heappop(self._latest_first)
            if self._next_use.get(entry[1]) == -entry[0]:
                if entry[1] in protected:
                    spared[entry[1]] = entry
                else:
                    del self._next_use[entry[1]]
                    victims.append(entry[1])
        for entry in spared.values():
            heapq.heappush(self._latest_first, entry)
        if len(victims) < count:
            raise too_few(count, self.name)
        return victims

    def forget(self, key: int) -> None:
        """See `Policy.forget`."""
        del self._next_use[key]
