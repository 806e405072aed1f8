"""Belady's rule, which needs the future: the bound that no policy beats."""

import heapq
from collections.abc import Container, Sequence

from workbench.policies.base import Policy, too_few

_NEVER = 1 << 62


class Belady(Policy):
    """Evicts what is next used in the latest event; equally late: the lower key first.

    Event-atomic it stays optimal: among all ways to hold each event's records together in `capacity` slots, none has
    fewer misses. (Exchange argument: keeping the record needed sooner lets the altered schedule copy any other one step
    by step until that record is used, a hit there and a miss in the other, and both then reach the same residents at
    no greater cost. Two records of one event are needed equally soon, so their order is free.) It is not a bound for
    caches that may serve a miss without admitting it.
    """

    name = "belady"

    def __init__(self, capacity: int, events: Sequence[Sequence[int]]) -> None:
        """`events` is the whole future, in the order in which `start_event` will be called."""
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
