"""Eviction by expected benefit: P(use before eviction) x exposed latency avoided / bytes."""

import math
from collections import OrderedDict
from collections.abc import Callable, Container, Sequence

from workbench.policies.base import Policy, too_few

_NUM_USE_CLASSES = 8
_NUM_AGE_CLASSES = 24
_CENSUSES_PER_TURNOVER = 16
"""Censuses in as many events as the cache has slots."""
_KEPT_AT_CENSUS = 0.9
"""Factor by which all tallies decay at a census."""


class Score(Policy):
    """Evicts the record of the lowest score.

    The rate at which records are used again is estimated per class: number of uses (never reset) and age (events since the
    last use), both in powers of two. The rate of a class is its uses divided by the time that residents spent in the class,
    sampled at censuses, one every capacity / 16 events (at least 8). With `T`, the mean time that a record stays resident,
    P(use before eviction) = 1 - exp(-rate x T). Tallies decay by a tenth at each census; a class without data has a rate of
    about 1 / (age + 1).

    `worth(key)` is the exposed latency avoided per byte. Of records with equal worth and use class, only the oldest is
    considered. By default all records have the same worth, so that the probability alone decides.
    """

    name = "score"

    def __init__(self, capacity: int, *, worth: Callable[[int], float] | None = None) -> None:
        super().__init__(capacity)
        self._worth = worth or (lambda key: 1.0)
        self._period = max(8, capacity // _CENSUSES_PER_TURNOVER)
        self._clock = 0
        self._uses: dict[int, int] = {}
        self._lists: dict[tuple[float, int], OrderedDict[int, int]] = {}
        self._num_used = _tally()
        self._time_spent = _tally()
        self._num_admitted = 1.0
        self._time_watched = 1.0
        self._probability = _tally()
        self._take_census()

    def start_event(self) -> None:
        """See `Policy.start_event`."""
        self._clock += 1
        if self._clock % self._period == 0:
            self._take_census()

    def touch(self, keys: Sequence[int]) -> None:
        """See `Policy.touch`."""
        for key in keys:
            last = self._lists[self._list_of(key)].pop(key)
            self._num_used[_use_class(self._uses[key])][_age_class(self._clock - last)] += 1
        self._use(keys)

    def admit(self, keys: Sequence[int]) -> None:
        """See `Policy.admit`."""
        self._num_admitted += len(keys)
        self._use(keys)

    def _use(self, keys: Sequence[int]) -> None:
        for key in keys:
            self._uses[key] = self._uses.get(key, 0) + 1
            self._lists.setdefault(self._list_of(key), OrderedDict())[key] = self._clock

    def _list_of(self, key: int) -> tuple[float, int]:
        return self._worth(key), _use_class(self._uses[key])

    def evict(self, count: int, protected: Container[int]) -> list[int]:
        """See `Policy.evict`."""
        victims = []
        for _ in range(count):
            heads = [head for place in self._lists if (head := self._head(place, protected)) is not None]
            if not heads:
                raise too_few(count, self.name)
            victims.append(min(heads)[-1])
            self.forget(victims[-1])
        return victims

    def _head(self, place: tuple[float, int], protected: Container[int]) -> tuple[float, int, int] | None:
        """Score, last use and key of the oldest unprotected record of a list."""
        worth, use_class = place
        for key, last in self._lists[place].items():
            if key not in protected:
                return worth * self._probability[use_class][_age_class(self._clock - last)], last, key
        return None

    def forget(self, key: int) -> None:
        """See `Policy.forget`. The count of uses stays."""
        del self._lists[self._list_of(key)][key]

    def _take_census(self) -> None:
        """Adds the residents' time to their classes, updates the probabilities, and decays the tallies."""
        for (_, use_class), residents in self._lists.items():
            for last in residents.values():
                self._time_spent[use_class][_age_class(self._clock - last)] += self._period
        self._time_watched += self._period
        stay = self.capacity * self._time_watched / self._num_admitted
        for probability, num_used, time_spent in zip(self._probability, self._num_used, self._time_spent, strict=True):
            for age_class in range(_NUM_AGE_CLASSES):
                rate = (num_used[age_class] + 1) / (time_spent[age_class] + (1 << age_class) + 1)
                probability[age_class] = -math.expm1(-rate * stay)
        for tally in self._num_used + self._time_spent:
            tally[:] = [_KEPT_AT_CENSUS * number for number in tally]
        self._num_admitted *= _KEPT_AT_CENSUS
        self._time_watched *= _KEPT_AT_CENSUS


def _tally() -> list[list[float]]:
    return [[0.0] * _NUM_AGE_CLASSES for _ in range(_NUM_USE_CLASSES)]


def _use_class(uses: int) -> int:
    return min(uses.bit_length(), _NUM_USE_CLASSES) - 1


def _age_class(age: int) -> int:
    return min(age.bit_length(), _NUM_AGE_CLASSES - 1)
