"""LFRU: least frequently and recently used, exact (Zhang, arXiv 2608.07911)."""

import math
from array import array
from collections import OrderedDict
from collections.abc import Container, Sequence

import numpy as np

from workbench.policies.base import Policy, too_few

_NONE = 1 << 62
"""Stands for the last use of the head of an empty list, so that its wait is below 0."""
_EVENTS_PER_SURVEY = 256
"""Events between updates of the earliest last use."""
_SPARE_LISTS = 16
"""Lists that an eviction examines beyond those that the previous eviction needed."""


class Lfru(Policy):
    """Evicts the record of the lowest score `f / (age + 1)`, that is of the longest wait `(age + 1) / f`.

    `f` counts every event that ever used the record, hit or miss; eviction does not reset it. `age` is the number of
    events since the last one that used the record: 0 for the present event. Among equal scores the smaller `f` is evicted
    first, then the older use. Residents are kept in one list per `f`, oldest first, so the victim is always the head of a
    list; one vector operation over the heads finds that list. Lists of so high an `f` that even the age of the oldest
    resident would not give the longest wait are not examined.
    """

    name = "lfru"

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._clock = 0
        self._uses: dict[int, int] = {}
        self._last_by_uses: list[OrderedDict[int, int]] = [OrderedDict(), OrderedDict()]
        self._counts = np.arange(64, dtype=np.float64)
        self._heads = array("q", [_NONE]) * 64
        """Last use of each list's head. `array` is faster than NumPy for single elements; `_seen_heads` shares its memory."""
        self._seen_heads = np.frombuffer(self._heads, np.int64)
        self._earliest = 0
        """Event number; every resident was last used in this event or later."""
        self._reach = _SPARE_LISTS
        """Number of lists that are examined first."""

    def start_event(self) -> None:
        """See `Policy.start_event`."""
        self._clock += 1
        if self._clock % _EVENTS_PER_SURVEY == 0:
            self._earliest = min(min(self._heads), self._clock)

    def touch(self, keys: Sequence[int]) -> None:
        """See `Policy.touch`."""
        lists, all_uses, clock, heads = self._last_by_uses, self._uses, self._clock, self._heads
        for key in keys:
            uses = all_uses[key]
            last_uses = lists[uses]
            if last_uses.pop(key) == heads[uses]:
                heads[uses] = next(iter(last_uses.values()), _NONE)
            all_uses[key] = uses = uses + 1
            if uses == len(lists):
                self._add_list()
                heads = self._heads
            last_uses = lists[uses]
            if not last_uses:
                heads[uses] = clock
            last_uses[key] = clock

    def admit(self, keys: Sequence[int]) -> None:
        """See `Policy.admit`."""
        lists, all_uses, clock = self._last_by_uses, self._uses, self._clock
        for key in keys:
            uses = all_uses.get(key, 0) + 1
            all_uses[key] = uses
            if uses == len(lists):
                self._add_list()
            last_uses = lists[uses]
            if not last_uses:
                self._heads[uses] = clock
            last_uses[key] = clock

    def _add_list(self) -> None:
        self._last_by_uses.append(OrderedDict())
        if len(self._last_by_uses) > len(self._heads):
            self._counts = np.arange(2 * len(self._counts), dtype=np.float64)
            self._heads = self._heads + array("q", [_NONE]) * len(self._heads)
            self._seen_heads = np.frombuffer(self._heads, np.int64)

    def evict(self, count: int, protected: Container[int]) -> list[int]:
        """See `Policy.evict`."""
        victims: list[int] = []
        longest_wait = self._clock + 1 - self._earliest
        waits = self._waits(1, self._reach) if count else np.empty(0)
        while len(victims) < count:
            at = int(waits.argmax())
            found = waits.item(at)
            if found < longest_wait / len(waits) and len(waits) + 1 < len(self._last_by_uses):
                waits = np.append(waits, self._waits(len(waits) + 1, 2 * len(waits)))
                continue
            if found < 0:
                raise too_few(count, self.name)
            residents = self._last_by_uses[at + 1]
            victim = next(iter(residents))
            if victim in protected:
                unprotected = next((key for key in residents if key not in protected), None)
                wait = -math.inf if unprotected is None else (self._clock + 1 - residents[unprotected]) / (at + 1)
                if unprotected is None or wait < found:
                    waits[at] = wait
                    continue
                victim = unprotected
            self.forget(victim)
            victims.append(victim)
            waits[at] = (self._clock + 1 - self._heads[at + 1]) / (at + 1)
        if victims:
            self._reach = int(longest_wait / found) + _SPARE_LISTS
        return victims

    def forget(self, key: int) -> None:
        """See `Policy.forget`. The count of uses stays."""
        uses = self._uses[key]
        last_uses = self._last_by_uses[uses]
        if last_uses.pop(key) == self._heads[uses]:
            self._heads[uses] = next(iter(last_uses.values()), _NONE)

    def _waits(self, first: int, last: int) -> np.ndarray:
        """Waits of the heads of the lists `first` to `last`."""
        lists = slice(first, min(last + 1, len(self._last_by_uses)))
        return (self._clock + 1 - self._seen_heads[lists]) / self._counts[lists]
