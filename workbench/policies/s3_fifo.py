"""S3-FIFO: three FIFO queues (Yang and others, SOSP 2023), with the defaults of libCacheSim."""

from collections import OrderedDict
from collections.abc import Container

from workbench.policies.base import too_few
from workbench.policies.ghosts import GhostPolicy, Keys

_MOST_ROUNDS = 3
"""Largest use count of a key in `main`, as in the paper's two-bit counters."""


class S3Fifo(GhostPolicy):
    """Filters records that are not used again with a small queue, and reinserts used records in a main queue.

    New keys enter `small`; keys with a ghost (evicted lately) enter `main`. At the head of `small`, a key used `promote_at`
    times since it entered moves to `main`, any other key is evicted and leaves a ghost. At the head of `main`, a used key is
    reinserted with one use less, an unused key is evicted. Until the first eviction, keys that do not fit `small` enter
    `main`. Protected keys are skipped and keep their position. With one key per event this is libCacheSim's algorithm, except
    that `small` holds at least one record, where libCacheSim caches nothing at capacities below ten.
    """

    name = "s3-fifo"

    def __init__(self, capacity: int, *, small_share: float = 0.1, ghost_share: float = 0.9, promote_at: int = 2) -> None:
        """`small_share`, `ghost_share`: sizes of the small queue and of the ghost list divided by `capacity`."""
        super().__init__(capacity)
        self._num_small = max(1, int(capacity * small_share))
        self._num_ghosts = int(capacity * ghost_share)
        self._promote_at = promote_at
        self._small: OrderedDict[int, int] = OrderedDict()
        self._main: OrderedDict[int, int] = OrderedDict()
        self._ghosts: Keys = OrderedDict()
        self._has_evicted = False

    def _use(self, key: int) -> None:
        (self._small if key in self._small else self._main)[key] += 1

    def _find_ghost(self, key: int) -> Keys | None:
        if key not in self._ghosts:
            return None
        del self._ghosts[key]
        return self._ghosts

    def _make_room(self, ghosts: Keys | None, protected: Container[int]) -> int:
        self._has_evicted = True
        main_is_full = len(self._main) > self.capacity - self._num_small
        victim = self._evict_main(protected) if main_is_full else None
        if victim is None:
            victim = self._evict_small(protected)
        if victim is None:
            victim = self._evict_main(protected)
        if victim is None:
            raise too_few(1, self.name)
        return victim

    def _evict_small(self, protected: Container[int]) -> int | None:
        for key in _up_to_idle(self._small, self._promote_at, protected):
            if self._small.pop(key) < self._promote_at:
                self._ghosts[key] = None
                if len(self._ghosts) > self._num_ghosts:
                    self._ghosts.popitem(last=False)
                return key
            self._main[key] = 0
        return None

    def _evict_main(self, protected: Container[int]) -> int | None:
        for _ in range(_MOST_ROUNDS + 1):
            for key in _up_to_idle(self._main, 1, protected):
                uses = self._main.pop(key)
                if not uses:
                    return key
                self._main[key] = min(uses, _MOST_ROUNDS) - 1
        return None

    def _place(self, key: int, ghosts: Keys | None) -> None:
        overflows = not self._has_evicted and len(self._small) >= self._num_small
        (self._small if ghosts is None and not overflows else self._main)[key] = 0

    def _remove(self, key: int) -> None:
        del (self._small if key in self._small else self._main)[key]


def _up_to_idle(queue: OrderedDict[int, int], num_uses: int, protected: Container[int]) -> list[int]:
    """The unprotected keys of `queue`, oldest first, up to and including the first key used fewer than `num_uses` times."""
    keys = []
    for key, uses in queue.items():
        if key not in protected:
            keys.append(key)
            if uses < num_uses:
                break
    return keys
