"""The common part of ARC and S3-FIFO, policies that learn from ghosts (keys evicted lately)."""

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Container, Sequence

from workbench.policies.base import Policy

Keys = OrderedDict[int, None]


class GhostPolicy(Policy):
    """Handles the misses of an event one by one, in rank order: finds the key's ghost, evicts a victim, inserts the key.

    Admitted keys are therefore queued until `evict` tells how many of them need a victim: the last ones, since the first
    ones got free slots.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._waiting: list[int] = []

    def start_event(self) -> None:
        """See `Policy.start_event`."""
        self._let_in()

    def touch(self, keys: Sequence[int]) -> None:
        """See `Policy.touch`."""
        self._let_in()
        for key in keys:
            self._use(key)

    def admit(self, keys: Sequence[int]) -> None:
        """See `Policy.admit`."""
        self._let_in()
        self._waiting = list(keys)

    def evict(self, count: int, protected: Container[int]) -> list[int]:
        """See `Policy.evict`."""
        waiting, self._waiting = self._waiting, []
        victims: list[int] = []
        num_free = len(waiting) - count
        for rank, key in enumerate(waiting):
            ghosts = self._find_ghost(key)
            if rank >= num_free and key in protected:
                victims.append(self._make_room(ghosts, protected))
            self._place(key, ghosts)
        while len(victims) < count:
            victims.append(self._make_room(None, protected))
        return victims

    def forget(self, key: int) -> None:
        """See `Policy.forget`."""
        self._let_in()
        self._remove(key)

    def _let_in(self) -> None:
        self.evict(0, ())

    @abstractmethod
    def _use(self, key: int) -> None:
        """Records a use of resident `key`."""

    @abstractmethod
    def _find_ghost(self, key: int) -> Keys | None:
        """Finds the ghost of missing `key`, adapts to it and removes it; returns the list that held the ghost, or None."""

    @abstractmethod
    def _make_room(self, ghosts: Keys | None, protected: Container[int]) -> int:
        """Evicts and returns one key, to make room for a key whose ghost was in `ghosts`."""

    @abstractmethod
    def _place(self, key: int, ghosts: Keys | None) -> None:
        """Makes `key`, whose ghost was in `ghosts`, resident."""

    @abstractmethod
    def _remove(self, key: int) -> None:
        """Removes resident `key` without leaving a ghost."""
