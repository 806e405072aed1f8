"""Micro prefill: reads only the records that a tile chose, in the order of the file, with a bounded number of slots.

Prefill sees every record of a layer once and decode the same few again and again, so records read by prefill must not evict
records that decode uses. Cold records leave as soon as they are computed; only the hottest records of each layer are kept.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from workbench.loading.records import RecordSource
from workbench.loading.transfer import Transfer
from workbench.loading.wait import Loading
from workbench.runtime.flow import Batch, Views
from workbench.runtime.memory import RecordMemory
from workbench.scheduling.ticket import Origin

_STORE = "expert"
_GROUPS = 4
"""Groups in flight or computing at once: one computes while the others are read."""
_GROUP = 16
"""Most records of a group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillShare:
    """Record slots that prefill may use."""

    window: int
    """Slots for records used once."""
    stay: int
    """Records per layer that prefill may keep."""

    @classmethod
    def of(cls, num_slots: int, share: float, num_layers: int) -> "PrefillShare":
        """Splits `share` of the slots: half is a window for records used once, half is for records kept after prefill."""
        half = max(1, int(share * num_slots / 2))
        return cls(window=half, stay=half // num_layers)


class RetainedRecords:
    """Records that prefill keeps, by layer; each tile chooses the kept records anew, hottest first."""

    def __init__(self, stay: int) -> None:
        self._stay = stay
        self._of: dict[int, list[int]] = {}

    def choose(self, layer: int, absent: Sequence[int], heat: Mapping[int, int], spare: int) -> tuple[list[int], list[int]]:
        """Chooses the records of a tile's union to keep, and the earlier kept records to drop.

        Args:
            layer: index of the records' layer.
            absent: records that the tile has to read.
            heat: rows of the tile that use each record of its union.
            spare: free slots. Records loaded there evict nothing, so they do not count against what prefill may keep.
        """
        hottest = sorted(absent, key=lambda key: -heat[key])
        filling, others = hottest[:spare], hottest[spare:]
        missing = set(absent)
        before = [key for key in self._of.get(layer, []) if key not in missing]
        worth = sorted([*before, *others], key=lambda key: -heat.get(key, 0))
        retained = self._of[layer] = worth[: self._stay]
        return filling + [key for key in retained if key not in before], [key for key in before if key not in retained]

    def clear(self) -> None:
        """Called before decode: the kept records become ordinary residents."""
        self._of.clear()


def groups_of(keys: Iterable[int], length: int) -> list[list[int]]:
    """Keys in the order of the file, cut into groups."""
    ordered = sorted(keys)
    return [ordered[i : i + length] for i in range(0, len(ordered), length)]


class UnionFeed:
    """One layer's union in groups: resident records first, then records dropped after use, last records to keep."""

    def __init__(
        self, transfer: Transfer, source: RecordSource, memory: RecordMemory, origin: Origin, share: PrefillShare
    ) -> None:
        self._transfer, self._source, self._memory, self._origin = transfer, source, memory, origin
        self._window = share.window
        self._groups: deque[list[int]] = deque()
        self._asked: deque[Batch] = deque()
        self._drop: Collection[int] = ()
        self._held = self._filling = 0

    def plan(self, keys: Sequence[int], heat: Mapping[int, int], retained: RetainedRecords) -> None:
        """Chooses the records to keep and the order in which the records `keys` are read."""
        slots = self._transfer.scheduler.pools[_STORE].slots
        resident, absent = slots.partition(keys)
        free = slots.num_free
        spare = free if len(absent) <= free else max(0, free - self._window)
        stay, gone = retained.choose(self._origin.layer, absent, heat, spare)
        self._transfer.scheduler.drop(_STORE, [key for key in gone if key not in heat])
        passing = set(absent) - set(stay)
        self._drop = passing | {key for key in gone if key in heat}
        length = max(1, min(self._window // _GROUPS, _GROUP))
        self._groups += groups_of(resident, length) + groups_of(passing, length) + groups_of(stay, length)

    def fill(self) -> None:
        """Demands groups while the window has room for their missing records."""
        slots = self._transfer.scheduler.pools[_STORE].slots
        while self._groups:
            num_absent = len(slots.partition(self._groups[0])[1])
            if self._filling + num_absent > self._window or not self._ask():
                return

    def _ask(self) -> bool:
        group, transfer = self._groups[0], self._transfer
        now_ns = transfer.clock.now_ns()
        demand = transfer.ask(_STORE, group, self._origin)
        if demand is None:
            return False
        num_bytes = len(group) * self._memory.geometry.record_bytes
        transfer.recorder.demand(demand, group, now_ns, logical_bytes=num_bytes, num_rows=None)
        self._groups.popleft()
        self._asked.append(Batch(demand, group))
        self._held += 1
        self._filling += len(group) - len(demand.hits)
        return True

    def next_batch(self) -> Loading[Batch | None]:
        """The next group; waits for slots of other requests when this feed pins none itself."""
        while not self._asked:
            if self._held:
                return None
            if not self._ask():
                yield self._transfer.slots_wait()
        return self._asked.popleft()

    @property
    def is_done(self) -> bool:
        """Whether all groups were returned."""
        return not self._groups and not self._asked

    def views(self, batch: Batch) -> list[Views]:
        """Components of each record in its slot."""
        slots = batch.demand.slots
        return [self._memory.components(slots[key], self._source.lead_in(key)) for key in batch.keys]

    def release(self, batch: Batch) -> None:
        """Releases a group after compute; records that are not kept leave their slots."""
        self._transfer.release(batch.demand, drop=self._drop)
        self._held -= 1
        self._filling -= len(batch.keys) - len(batch.demand.hits)
