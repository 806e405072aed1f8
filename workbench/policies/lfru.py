"""LFRU: least frequently and recently used, exact (Zhang, arXiv 2608.07911)."""

import heapq
import math
from collections import OrderedDict
from collections.abc import Container, Iterator, Sequence

from workbench.policies.base import Policy, too_few

_Uses = Iterator[tuple[int, int]]
_Candidate = tuple[float, int, int, _Uses]
"""Score, number of uses, key, and what follows it in its list."""


class Lfru(Policy):
    """Evicts the lowest `f / (age + 1)`.

    `f` counts every event that ever used the record, hit or miss; eviction does not reset it. `age` is the number of
    events since the last that used it: 0 for the present one. Equal scores: the smaller `f` goes first, then the older
    use. Residents lie in one list per `f`, oldest first, so only the heads of the lists can be worst; and as no record
    is older than the oldest of all, the search ends at the first `f` that would be too good even at that age.
    """

    name = "lfru"

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._clock = 0
        self._uses: dict[int, int] = {}
        self._last_by_recency: OrderedDict[int, int] = OrderedDict()
        self._last_by_uses: list[OrderedDict[int, int]] = [OrderedDict()]

    def start_event(self) -> None:
        """See `Policy.start_event`."""
        self._clock += 1

    def touch(self, keys: Sequence[int]) -> None:
        """See `Policy.touch`."""
        for key in keys:
            del self._last_by_uses[self._uses[key]][key]
        self._use(keys)

    def admit(self, keys: Sequence[int]) -> None:
        """See `Policy.admit`."""
        self._use(keys)

    def _use(self, keys: Sequence[int]) -> None:
        clock, all_uses, by_recency, by_uses = self._clock, self._uses, self._last_by_recency, self._last_by_uses
        for key in keys:
            uses = all_uses.get(key, 0) + 1
            all_uses[key] = uses
            if uses == len(by_uses):
                by_uses.append(OrderedDict())
            by_uses[uses][key] = clock
            by_recency[key] = clock
            by_recency.move_to_end(key)

    def evict(self, count: int, protected: Container[int]) -> list[int]:
        """See `Policy.evict`."""
        oldest_first = self._candidates(count, protected)
        victims: list[int] = []
        while len(victims) < count and oldest_first:
            _, uses, victim, rest = oldest_first[0]
            victims.append(victim)
            if (following := self._next_candidate(uses, rest, protected)) is not None:
                heapq.heapreplace(oldest_first, following)
            else:
                heapq.heappop(oldest_first)
        if len(victims) < count:
            raise too_few(count, self.name)
        for victim in victims:
            self.forget(victim)
        return victims

    def _candidates(self, count: int, protected: Container[int]) -> list[_Candidate]:
        """A heap with the oldest record of every list that may hold one of the `count` worst."""
        longest = self._clock + 1 - next(iter(self._last_by_recency.values()), self._clock)
        worst_negated = [-math.inf] * count
        candidates = []
        for uses, last_uses in enumerate(self._last_by_uses):
            if count == 0 or uses / longest >= -worst_negated[0]:
                break
            if (candidate := self._next_candidate(uses, iter(last_uses.items()), protected)) is not None:
                candidates.append(candidate)
                if candidate[0] < -worst_negated[0]:
                    heapq.heapreplace(worst_negated, -candidate[0])
        heapq.heapify(candidates)
        return candidates

    def _next_candidate(self, uses: int, oldest_first: _Uses, protected: Container[int]) -> _Candidate | None:
        for key, last in oldest_first:
            if key not in protected:
                return uses / (self._clock + 1 - last), uses, key, oldest_first
        return None

    def forget(self, key: int) -> None:
        """See `Policy.forget`. The count of uses stays."""
        del self._last_by_recency[key]
        del self._last_by_uses[self._uses[key]][key]
