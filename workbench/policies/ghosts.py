"""Policies that learn from ghosts, the keys they evicted lately: what ARC and S3-FIFO have in common."""

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Container, Sequence

from workbench.policies.base import Policy

Keys = OrderedDict[int, None]


class GhostPolicy(Policy):
    """Takes an event's misses one by one, in rank order: find its ghost, make room for it, let it in.

    So admitted keys wait until `evict` says for how many of them room must be made: the last of them, as the first
    found free slots.
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
        """Resident `key` is used."""

    @abstractmethod
    def _find_ghost(self, key: int) -> Keys | None:
        """Looks for the ghost of a missing key, learns from it and removes it; the list it was in, if any."""

    @abstractmethod
    def _make_room(self, ghosts: Keys | None, protected: Container[int]) -> int:
        """Evicts one key to make room for one that was found in `ghosts`."""

    @abstractmethod
    def _place(self, key: int, ghosts: Keys | None) -> None:
        """`key`, found in `ghosts`, becomes resident."""

    @abstractmethod
    def _remove(self, key: int) -> None:
        """Resident `key` is gone and leaves no ghost."""
