"""ARC: adaptive replacement cache (Megiddo and Modha, FAST 2003)."""

from collections import OrderedDict
from collections.abc import Container

from workbench.policies.base import too_few
from workbench.policies.ghosts import GhostPolicy, Keys


class Arc(GhostPolicy):
    """Balances recency (list `once`: used by one event since admission) and frequency (list `again`: used by more events).

    A miss on a key that a list evicted lately (its ghost) moves `target`, the size wanted for `once`, in favour of that list.
    With one key per event this is the published algorithm. With more, protected keys are skipped and keep their position;
    when all keys of one list are protected, the victim is taken from the other list.
    """

    name = "arc"

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._once: Keys = OrderedDict()
        self._again: Keys = OrderedDict()
        self._once_ghosts: Keys = OrderedDict()
        self._again_ghosts: Keys = OrderedDict()
        self._target = 0.0

    def _use(self, key: int) -> None:
        if key in self._again:
            self._again.move_to_end(key)
        else:
            del self._once[key]
            self._again[key] = None

    def _find_ghost(self, key: int) -> Keys | None:
        if key in self._once_ghosts:
            ghosts, ratio = self._once_ghosts, len(self._again_ghosts) / len(self._once_ghosts)
            self._target = min(self.capacity, self._target + max(1.0, ratio))
        elif key in self._again_ghosts:
            ghosts, ratio = self._again_ghosts, len(self._once_ghosts) / len(self._again_ghosts)
            self._target = max(0.0, self._target - max(1.0, ratio))
        else:
            return None
        del ghosts[key]
        return ghosts

    def _make_room(self, ghosts: Keys | None, protected: Container[int]) -> int:
        leaves_ghost = True
        if ghosts is None:
            if len(self._once) + len(self._once_ghosts) >= self.capacity:
                leaves_ghost = bool(self._once_ghosts)
                _drop_oldest(self._once_ghosts)
            elif self._num_known >= 2 * self.capacity:
                _drop_oldest(self._again_ghosts)
        num_once, is_tie = len(self._once), len(self._once) == self._target and ghosts is self._again_ghosts
        once_first = not leaves_ghost or (num_once > 0 and (num_once > self._target or is_tie))
        once, again = (self._once, self._once_ghosts), (self._again, self._again_ghosts)
        for resident, own_ghosts in (once, again) if once_first else (again, once):
            victim = next((key for key in resident if key not in protected), None)
            if victim is not None:
                del resident[victim]
                if leaves_ghost or resident is self._again:
                    own_ghosts[victim] = None
                return victim
        raise too_few(1, self.name)

    @property
    def _num_known(self) -> int:
        return sum(map(len, (self._once, self._again, self._once_ghosts, self._again_ghosts)))

    def _place(self, key: int, ghosts: Keys | None) -> None:
        (self._once if ghosts is None else self._again)[key] = None

    def _remove(self, key: int) -> None:
        del (self._once if key in self._once else self._again)[key]


def _drop_oldest(ghosts: Keys) -> None:
    if ghosts:
        ghosts.popitem(last=False)
