"""The hot set of a sequence: the records it used most often and most recently, prefetched while generation is idle."""

import heapq
from collections.abc import Container, Sequence


class HotSet:
    """Ranks the records of one sequence by `f / (age + 1)`: uses `f` and age counted in events of this sequence only."""

    def __init__(self) -> None:
        self._clock = 0
        self._uses: dict[int, int] = {}
        self._last: dict[int, int] = {}

    def use(self, keys: Sequence[int]) -> None:
        """Records one event of the sequence that used `keys`."""
        self._clock += 1
        for key in keys:
            self._uses[key] = self._uses.get(key, 0) + 1
            self._last[key] = self._clock

    def missing(self, resident: Container[int], count: int) -> list[int]:
        """At most `count` records that are not `resident`, hottest first; equally hot: the lower key."""
        absent = [key for key in self._uses if key not in resident]
        return heapq.nsmallest(count, absent, key=lambda key: (-self._uses[key] / (self._clock + 1 - self._last[key]), key))
