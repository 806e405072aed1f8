"""Micro prefill: the records that a tile chose and no others, in the order of the file, a bounded number of slots at a time.

Prefill sees every record of a layer once and decode the same few again and again, so what prefill reads must not push out
what decode keeps. Cold records leave as soon as they are computed; of each layer only the hottest stay.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from workbench.loading.records import RecordSource
from workbench.loading.transfer import Transfer
from workbench.loading.wait import Loading
from workbench.runtime.flow import Part, Views
from workbench.runtime.pool import RecordPool
from workbench.scheduling.ticket import Origin

_STORE = "expert"
_GROUPS = 4
"""Groups in flight or in use at once: one is computed while the others come."""
_GROUP = 16
"""Most records of a group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What prefill may take of the record slots."""

    window: int
    """Slots for records that pass through."""
    stay: int
    """Records of each layer that it may leave behind."""

    @classmethod
    def of(cls, num_slots: int, share: float, num_layers: int) -> "Share":
        """Half of `share` of the slots for what passes, half for what stays."""
        half = max(1, int(share * num_slots / 2))
        return cls(window=half, stay=half // num_layers)


class Guests:
    """Records that prefill left behind, by layer; each tile chooses anew which of them are worth their slots."""

    def __init__(self, stay: int) -> None:
        self._stay = stay
        self._of: dict[int, list[int]] = {}

    def choose(self, layer: int, absent: Sequence[int], heat: Mapping[int, int], spare: int) -> tuple[list[int], list[int]]:
        """Which records of a tile's union stay, and which earlier guests must go.

        Args:
            layer: whose records they are.
            absent: records that the tile has to read.
            heat: rows of the tile that use each record of its union.
            spare: empty slots that nobody needs: what fills them is no guest.
        """
        hottest = sorted(absent, key=lambda key: -heat[key])
        filling, others = hottest[:spare], hottest[spare:]
        missing = set(absent)
        before = [key for key in self._of.get(layer, []) if key not in missing]
        worth = sorted([*before, *others], key=lambda key: -heat.get(key, 0))
        guests = self._of[layer] = worth[: self._stay]
        return filling + [key for key in guests if key not in before], [key for key in before if key not in guests]

    def forget(self) -> None:
        """Decode begins: what is still there is an ordinary resident now."""
        self._of.clear()


def groups_of(keys: Iterable[int], length: int) -> list[list[int]]:
    """Keys in the order of the file, cut into groups."""
    ordered = sorted(keys)
    return [ordered[i : i + length] for i in range(0, len(ordered), length)]


class UnionFeed:
    """One layer's union as groups: what is resident first, then what passes through, last what stays."""

    def __init__(self, transfer: Transfer, source: RecordSource, pool: RecordPool, origin: Origin, share: Share) -> None:
        self._transfer, self._source, self._pool, self._event = transfer, source, pool, origin
        self._window = share.window
        self._groups: deque[list[int]] = deque()
        self._asked: deque[Part] = deque()
        self._drop: Collection[int] = ()
        self._held = self._filling = 0

    def plan(self, keys: Sequence[int], heat: Mapping[int, int], guests: Guests) -> None:
        """Decides what stays, and in which order the records `keys` are read."""
        slots = self._transfer.scheduler.pools[_STORE].slots
        resident, absent = slots.partition(keys)
        free = slots.num_free
        spare = free if len(absent) <= free else max(0, free - self._window)
        stay, gone = guests.choose(self._event.layer, absent, heat, spare)
        self._transfer.scheduler.drop(_STORE, [key for key in gone if key not in heat])
        passing = set(absent) - set(stay)
        self._drop = passing | {key for key in gone if key in heat}
        length = max(1, min(self._window // _GROUPS, _GROUP))
        self._groups += groups_of(resident, length) + groups_of(passing, length) + groups_of(stay, length)

    def fill(self) -> None:
        """Asks for groups as long as the window has room for what they miss."""
        slots = self._transfer.scheduler.pools[_STORE].slots
        while self._groups:
            num_absent = len(slots.partition(self._groups[0])[1])
            if self._filling + num_absent > self._window or not self._ask():
                return

    def _ask(self) -> bool:
        group, transfer = self._groups[0], self._transfer
        now_ns = transfer.clock.now_ns()
        demand = transfer.ask(_STORE, group, self._event)
        if demand is None:
            return False
        num_bytes = len(group) * self._pool.geometry.record_bytes
        transfer.recorder.demand(demand, group, now_ns, logical_bytes=num_bytes, num_rows=None)
        self._groups.popleft()
        self._asked.append(Part(demand, group))
        self._held += 1
        self._filling += len(group) - len(demand.hits)
        return True

    def take(self) -> Loading[Part | None]:
        """The next group; waits for other requests' slots when this one holds none itself."""
        while not self._asked:
            if self._held:
                return None
            if not self._ask():
                yield self._transfer.slots_wait()
        return self._asked.popleft()

    @property
    def is_done(self) -> bool:
        """Whether all groups were taken."""
        return not self._groups and not self._asked

    def views(self, part: Part) -> list[Views]:
        """Components of each record in its slot."""
        slots = part.demand.slots
        return [self._pool.components(slots[key], self._source.lead_in(key)) for key in part.keys]

    def release(self, part: Part) -> None:
        """A group was computed: those that only pass leave."""
        self._transfer.release(part.demand, drop=self._drop)
        self._held -= 1
        self._filling -= len(part.keys) - len(part.demand.hits)
