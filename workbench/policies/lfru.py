"""LFRU: least frequently and recently used, exact (Zhang, arXiv 2608.07911)."""

from collections import OrderedDict
from collections.abc import Container, Iterator, Sequence

import numpy as np

from workbench.policies.base import Policy, too_few

_NONE = np.inf


class Lfru(Policy):
    """Evicts the lowest `f / (age + 1)`.

    `f` counts every event that ever used the record, hit or miss; eviction does not reset it. `age` is the number of
    events since the last that used it: 0 for the present one. Equal scores: the smaller `f` goes first, then the older
    use. Residents lie in one list per `f`, oldest first, so the worst is always the head of a list; one vector
    operation over the heads finds the list.
    """

    name = "lfru"

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._clock = 0
        self._uses: dict[int, int] = {}
        self._last_by_uses: list[OrderedDict[int, int]] = [OrderedDict(), OrderedDict()]
        self._counts = np.arange(64, dtype=np.float64)
        self._oldest = np.full(64, _NONE)
        """Last use of each list's head, or of a head that left since: never later than the true one."""

    def start_event(self) -> None:
        """See `Policy.start_event`."""
        self._clock += 1

    def touch(self, keys: Sequence[int]) -> None:
        """See `Policy.touch`."""
        for key in keys:
            del self._last_by_uses[self._uses[key]][key]
        self.admit(keys)

    def admit(self, keys: Sequence[int]) -> None:
        """See `Policy.admit`."""
        for key in keys:
            uses = self._uses.get(key, 0) + 1
            self._uses[key] = uses
            if uses == len(self._last_by_uses):
                self._add_list()
            last_uses = self._last_by_uses[uses]
            if not last_uses:
                self._oldest[uses] = self._clock
            last_uses[key] = self._clock

    def _add_list(self) -> None:
        self._last_by_uses.append(OrderedDict())
        if len(self._last_by_uses) > len(self._oldest):
            self._counts = np.arange(2 * len(self._counts), dtype=np.float64)
            self._oldest = np.append(self._oldest, np.full_like(self._oldest, _NONE))

    def evict(self, count: int, protected: Container[int]) -> list[int]:
        """See `Policy.evict`."""
        if not count:
            return []
        now, num_lists = self._clock + 1, len(self._last_by_uses)
        # the inverse scores of the heads, or bounds above them; list 0 stays empty
        waits = (now - self._oldest[1:num_lists]) / self._counts[1:num_lists]
        found: dict[int, tuple[int, Iterator[tuple[int, int]]]] = {}
        victims: list[int] = []
        while len(victims) < count:
            longest = int(waits.argmax())
            if waits[longest] == -_NONE:
                raise too_few(count, self.name)
            uses = longest + 1
            if uses in found:
                victim, oldest_first = found[uses]
                victims.append(victim)
            else:
                oldest_first = iter(self._last_by_uses[uses].items())
            key, last = next((item for item in oldest_first if item[0] not in protected), (-1, _NONE))
            found[uses] = key, oldest_first
            waits[longest] = (now - last) / uses
        for victim in victims:
            self.forget(victim)
        for uses in found:
            self._oldest[uses] = next(iter(self._last_by_uses[uses].values()), _NONE)
        return victims

    def forget(self, key: int) -> None:
        """See `Policy.forget`. The count of uses stays."""
        del self._last_by_uses[self._uses[key]][key]
