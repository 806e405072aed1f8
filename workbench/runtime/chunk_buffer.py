"""Macro prefill: whole layers are read in chunks, ahead of compute, into slots that the record memory lends.

Reads continue into the next layer while the buffer has a free place: while the GPU computes layer l, layer l + 1 is read. A
chunk is one read of many records, logged as if each record had a ticket of its own: records that the router chooses later are
used predictions, the other records are wasted.
"""

from collections import deque
from collections.abc import Collection, Sequence

from workbench.loading.chunks import ChunkSource
from workbench.loading.transfer import Transfer
from workbench.loading.wait import Loading
from workbench.policies.lru import Lru
from workbench.runtime.flow import Batch, Views
from workbench.runtime.memory import RecordMemory
from workbench.scheduling.pool import Pool
from workbench.scheduling.slots import SlotTable
from workbench.scheduling.ticket import Demand, Origin, Ticket

LAYER = "layer"
"""Name of the scheduler's pool whose slots are the places of the buffer, and of its queue."""
_RECORDS = "expert"


def layer_pool(source: ChunkSource, digest: str) -> Pool:
    """The scheduler's pool of a chunk buffer: a place is a slot, and a chunk leaves after use."""
    num_places = source.cut.num_places
    return Pool(name=LAYER, digest=digest, slots=SlotTable(num_places, Lru(num_places)), sizes=source.sizes)


class ChunkBuffer:
    """Places for chunks, used as a ring. One pass at a time owns the buffer."""

    def __init__(self, transfer: Transfer, source: ChunkSource, memory: RecordMemory, num_slots: int) -> None:
        """`num_slots`: slots that the buffer borrows, the last ones of the record memory."""
        self.source = source
        self._transfer, self._memory, self._num_slots = transfer, memory, num_slots
        self._next: deque[tuple[int, Origin]] = deque()
        self._asked: deque[tuple[int, Demand]] = deque()
        self._used: dict[int, Collection[int]] = {}
        self._held = 0
        self._lent = self._taken = False
        transfer.scheduler.pools[LAYER].on_final = self._ended

    @property
    def num_bytes(self) -> int:
        """Bytes of records that the places hold."""
        return self.source.cut.num_places * self.source.cut.length * self.source.cut.record_bytes

    def take_over(self, origins: Sequence[Origin]) -> bool:
        """Gives the buffer to a pass and demands the first chunks of its layers, in the order of `origins`.

        False while another pass owns the buffer, or while a demand pins a record in the borrowed slots.
        """
        if self._taken or not self._borrow():
            return False
        self._taken = True
        self._next = deque((key, origin) for origin in origins for key in self.source.keys(origin.layer))
        self.fill()
        return True

    def _borrow(self) -> bool:
        if not self._lent:
            loan = self._transfer.scheduler.lend(_RECORDS, self._num_slots)
            if loan is None:
                return False
            for old, new in loan.moves.values():
                self._memory.move(old, new)
            self._lent = True
        return True

    def give_back(self) -> None:
        """Returns the borrowed slots unless a pass owns them; while a stale read writes there, a later call returns them."""
        if not self._lent or self._taken:
            return
        places = self._transfer.scheduler.pools[LAYER].slots
        if places.num_draining:
            self._transfer.collect()
        if not places.num_draining:
            self._transfer.scheduler.take_back(_RECORDS)
            self._lent = False

    def fill(self) -> None:
        """Demands the next chunks while places are free."""
        while self._next and self._ask():
            pass

    def _ask(self) -> bool:
        key, origin = self._next[0]
        demand = self._transfer.ask(LAYER, [key], origin)
        if demand is None:
            return False
        self._next.popleft()
        self._asked.append((key, demand))
        self._held += 1
        return True

    def next_batch(self) -> Loading[Demand | None]:
        """The demand of the next chunk; None until a chunk is released. Without pinned chunks, waits for stale reads to end."""
        while not self._asked:
            if self._held:
                return None
            if not self._ask():
                yield self._transfer.slots_wait()
        return self._asked.popleft()[1]

    def components(self, place: int, position: int) -> Views:
        """Gate, up and down of the record at `position` in the chunk in `place`."""
        return self._memory.components_at(self.source.record_start(place, position))

    def ahead(self) -> dict[int, Demand]:
        """Demands of chunks that compute has not reached, by chunk."""
        return dict(self._asked)

    def use(self, chunk: int, keys: Collection[int]) -> None:
        """Notes that the native router chose the records `keys` of a chunk."""
        self._used[chunk] = keys

    def release(self, demand: Demand) -> None:
        """Frees the place of a chunk that was computed or has no chosen record."""
        self._transfer.release(demand, drop=list(demand.slots))
        self._held -= 1

    def leave(self) -> None:
        """Ends the ownership of a pass that is over or has failed (the scheduler ends its pins then)."""
        self._taken = False
        self._next.clear()
        self._asked.clear()
        self._used.clear()
        self._held = 0

    def _ended(self, ticket: Ticket) -> None:
        keys = self.source.records(ticket.key)
        self._transfer.recorder.chunk(ticket, keys, self._used.pop(ticket.key, ()))


class LayerFeed:
    """The chunks of one layer in order; chunks without a used record are released at once."""

    def __init__(self, buffer: ChunkBuffer, layer: int, keys: Sequence[int]) -> None:
        """`keys`: records that the tile uses."""
        self._buffer = buffer
        self._left = deque(buffer.source.keys(layer))
        self._wanted: dict[int, list[int]] = {}
        for key in sorted(keys):
            self._wanted.setdefault(buffer.source.chunk(key), []).append(key)
        for chunk, used in self._wanted.items():
            buffer.use(chunk, frozenset(used))

    def progress(self) -> tuple[int, int]:
        """How many used records are complete, and how many are in flight."""
        ahead = self._buffer.ahead()
        asked = [(len(keys), ahead[chunk]) for chunk, keys in self._wanted.items() if chunk in ahead]
        there = sum(count for count, demand in asked if demand.have(demand.tickets))
        return there, sum(count for count, _ in asked) - there

    def fill(self) -> None:
        """Demands the next chunks, also of later layers."""
        self._buffer.fill()

    def next_batch(self) -> Loading[Batch | None]:
        """The next chunk with a used record."""
        while self._left and (demand := (yield from self._buffer.next_batch())) is not None:
            keys = self._wanted.get(self._left.popleft())
            if keys is not None:
                return Batch(demand, keys)
            self._buffer.release(demand)
            self._buffer.fill()
        return None

    @property
    def is_done(self) -> bool:
        """Whether `next_batch` has returned all chunks."""
        return not self._left

    def views(self, batch: Batch) -> list[Views]:
        """Components of the used records, as arrays on the place of the chunk."""
        ((chunk, place),) = batch.demand.slots.items()
        first = self._buffer.source.records(chunk)[0]
        return [self._buffer.components(place, key - first) for key in batch.keys]

    def release(self, batch: Batch) -> None:
        """Releases a computed chunk."""
        self._buffer.release(batch.demand)
