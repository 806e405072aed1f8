"""Macro prefill: whole layers pass through memory that the record pool lends, in chunks, ahead of the layer that computes.

Reads run on over the border of a layer as long as the ring has a free place: while the GPU computes layer l, layer l + 1
loads. A read of a chunk carries all its records, as if each had a ticket of its own: those that the router chooses later are
used predictions, the others are waste.
"""

from collections import deque
from collections.abc import Collection, Sequence

from workbench.loading.chunks import ChunkSource
from workbench.loading.transfer import Transfer
from workbench.loading.wait import Loading
from workbench.policies.lru import Lru
from workbench.runtime.flow import Part, Views
from workbench.runtime.pool import RecordPool
from workbench.scheduling.pool import Pool
from workbench.scheduling.slots import SlotTable
from workbench.scheduling.ticket import Demand, Origin, Ticket

LAYER = "layer"
"""Name of the scheduler's pool whose slots are the ring's places, and of its lane."""
_RECORDS = "expert"


def layer_pool(source: ChunkSource, digest: str) -> Pool:
    """The scheduler's view of a ring: a place is a slot, and chunks leave when they were used."""
    num_places = source.cut.num_places
    return Pool(name=LAYER, digest=digest, slots=SlotTable(num_places, Lru(num_places)), sizes=source.sizes)


class Ring:
    """Places for chunks, and the stream of layers through them: one pass at a time has it."""

    def __init__(self, transfer: Transfer, source: ChunkSource, pool: RecordPool, num_slots: int) -> None:
        """`num_slots`: slots of the record pool that it borrows, the last ones."""
        self.source = source
        self._transfer, self._pool, self._num_slots = transfer, pool, num_slots
        self._coming: deque[tuple[int, Origin]] = deque()
        self._asked: deque[tuple[int, Demand]] = deque()
        self._used: dict[int, Collection[int]] = {}
        self._held = 0
        self._lent = self._taken = False
        transfer.scheduler.pools[LAYER].on_final = self._ended

    @property
    def num_bytes(self) -> int:
        """Bytes of records that its places hold."""
        return self.source.cut.num_places * self.source.cut.length * self.source.cut.record_bytes

    def take_over(self, origins: Sequence[Origin]) -> bool:
        """A pass gets the ring and asks for the first chunks of its layers, which `events` name in order.

        False while another pass has it, or while somebody holds a record in its memory.
        """
        if self._taken or not self._borrow():
            return False
        self._taken = True
        self._coming = deque((key, origin) for origin in origins for key in self.source.keys(origin.layer))
        self.fill()
        return True

    def _borrow(self) -> bool:
        if not self._lent:
            loan = self._transfer.scheduler.lend(_RECORDS, self._num_slots)
            if loan is None:
                return False
            for old, new in loan.moves.values():
                self._pool.move(old, new)
            self._lent = True
        return True

    def give_back(self) -> None:
        """Returns the memory unless a pass has it; while a read that was given up writes there, the next call does."""
        if not self._lent or self._taken:
            return
        places = self._transfer.scheduler.pools[LAYER].slots
        if places.num_draining:
            self._transfer.collect()
        if not places.num_draining:
            self._transfer.scheduler.take_back(_RECORDS)
            self._lent = False

    def fill(self) -> None:
        """Asks for the next chunks while places are free."""
        while self._coming and self._ask():
            pass

    def _ask(self) -> bool:
        key, origin = self._coming[0]
        demand = self._transfer.ask(LAYER, [key], origin)
        if demand is None:
            return False
        self._coming.popleft()
        self._asked.append((key, demand))
        self._held += 1
        return True

    def take(self) -> Loading[Demand | None]:
        """The next chunk; None until one is released. Where none is held, waits for reads that were given up."""
        while not self._asked:
            if self._held:
                return None
            if not self._ask():
                yield self._transfer.slots_wait()
        return self._asked.popleft()[1]

    def components(self, place: int, position: int) -> Views:
        """Gate, up and down of the record at `position` in the chunk in `place`."""
        return self._pool.components_at(self.source.record_start(place, position))

    def ahead(self) -> dict[int, Demand]:
        """Chunks that were asked for and not taken."""
        return dict(self._asked)

    def use(self, chunk: int, keys: Collection[int]) -> None:
        """The native router has spoken: the records `keys` of a chunk are used."""
        self._used[chunk] = keys

    def release(self, demand: Demand) -> None:
        """A chunk was computed, or nobody needs it: its place is free."""
        self._transfer.release(demand, drop=list(demand.slots))
        self._held -= 1

    def leave(self) -> None:
        """The pass that had the ring is over or has failed (the scheduler ends its leases then)."""
        self._taken = False
        self._coming.clear()
        self._asked.clear()
        self._used.clear()
        self._held = 0

    def _ended(self, ticket: Ticket) -> None:
        keys = self.source.records(ticket.key)
        self._transfer.recorder.chunk(ticket, keys, self._used.pop(ticket.key, ()))


class LayerFeed:
    """One layer of the stream: its chunks in order; those that the tile uses nothing of are let go at once."""

    def __init__(self, ring: Ring, layer: int, keys: Sequence[int]) -> None:
        """`keys`: records that the tile uses."""
        self._ring = ring
        self._left = deque(ring.source.keys(layer))
        self._wanted: dict[int, list[int]] = {}
        for key in sorted(keys):
            self._wanted.setdefault(ring.source.chunk(key), []).append(key)
        for chunk, used in self._wanted.items():
            ring.use(chunk, frozenset(used))

    def progress(self) -> tuple[int, int]:
        """Used records that are there, and those that are on their way."""
        ahead = self._ring.ahead()
        asked = [(len(keys), ahead[chunk]) for chunk, keys in self._wanted.items() if chunk in ahead]
        there = sum(count for count, demand in asked if demand.have(demand.tickets))
        return there, sum(count for count, _ in asked) - there

    def fill(self) -> None:
        """Asks for the next chunks, be they of later layers."""
        self._ring.fill()

    def take(self) -> Loading[Part | None]:
        """The next chunk that is used."""
        while self._left and (demand := (yield from self._ring.take())) is not None:
            keys = self._wanted.get(self._left.popleft())
            if keys is not None:
                return Part(demand, keys)
            self._ring.release(demand)
            self._ring.fill()
        return None

    @property
    def is_done(self) -> bool:
        """Whether all chunks were taken."""
        return not self._left

    def views(self, part: Part) -> list[Views]:
        """Components of the used records, where they lie in the chunk's place."""
        ((chunk, place),) = part.demand.slots.items()
        first = self._ring.source.records(chunk)[0]
        return [self._ring.components(place, key - first) for key in part.keys]

    def release(self, part: Part) -> None:
        """A chunk was computed."""
        self._ring.release(part.demand)
