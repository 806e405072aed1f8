"""The I/O core: submits the scheduler's reads, tells it of completions, and waits for the smallest set of tickets.

Work that needs bytes is a generator that yields a `Wait`. A driver (an engine with many lanes, or `Transfer.run` with one
generator) resumes the generator when its wait is ready.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from workbench.errors import BadInput
from workbench.loading.joint import JointDemand
from workbench.loading.recorder import Recorder, owner_of
from workbench.loading.wait import Loading, T, Wait, first_ended, no_pieces
from workbench.readers.base import Completion, Read, Reader
from workbench.readers.clock import Clock, left_s
from workbench.scheduling.pool import DOWN_BIT, GATE_UP_BITS
from workbench.scheduling.scheduler import Scheduler
from workbench.scheduling.ticket import Demand, Order, Origin, PredictedKey, PrefetchResult, Priority, RequestStatus
from workbench.schema import EventLog
from workbench.units import NS_PER_S

_POLL_S = 0.5
HANG_NS = 30 * NS_PER_S
"""A read in flight for longer is given up, and a demanded key is read anew: far above any disk's worst second."""

_PART_BITS = {"gate_up": GATE_UP_BITS, "down": DOWN_BIT}


class RequestFailed(BadInput):
    """Demanded bytes can't be read: the request fails, its committed state is untouched."""


class ReadSource(Protocol):
    """Makes the read of an order: file offset and destination memory."""

    def read(self, order: Order) -> Read:
        """The read of `order`; its key is the order's number."""

    def arrived(self, order: Order) -> None:
        """Called when the checked bytes of `order` are in its slot, before they are published or, for a stale read, ignored."""


class Transfer:
    """The I/O loop: submits the scheduler's reads, reports completions, waits for demands. Used by the compute thread."""

    def __init__(
        self,
        scheduler: Scheduler,
        reader: Reader,
        sources: Mapping[str, ReadSource],
        log: EventLog,
        clock: Clock,
        drain: Callable[[Origin], None],
        *,
        notes_waves: bool = True,
    ) -> None:
        """`drain(origin)` blocks until the device is idle: time counts as exposed wait only after it returns.

        `notes_waves`: whether each wave of missing records leaves events.
        """
        self.scheduler = scheduler
        self.clock = clock
        self.recorder = Recorder(log)
        self.changes = 0
        """Completions and releases so far: a demand without slots is retried when the number has changed."""
        self._queue = scheduler.reads.queue
        self._reader = reader
        self._sources = sources
        self._drain, self._notes_waves = drain, notes_waves
        self.check_ns = {owner_of(name): 0 for name in sources}
        """Time that checksums took on the reader's threads, of records and pages."""
        for pool in scheduler.pools.values():
            pool.on_final = self.recorder.ticket

    # ---- asking -------------------------------------------------------------------------------------------------------

    def load(
        self, store: str, keys: Sequence[int], origin: Origin, *, logical_bytes: int, num_rows: int | None = None
    ) -> Loading[Demand]:
        """Demands exact keys and submits the reads of missing ones; waits while too many slots are pinned.

        `logical_bytes`: bytes of the demanded records, or of `num_rows` demanded n-gram rows.
        """
        asked_ns = self.clock.now_ns()
        while (demand := self.ask(store, keys, origin)) is None:
            yield self.slots_wait()
        self.recorder.demand(demand, keys, asked_ns, logical_bytes=logical_bytes, num_rows=num_rows)
        return demand

    def ask(self, store: str, keys: Sequence[int], origin: Origin) -> Demand | None:
        """Demands exact keys without an event in the log; None while too many slots are pinned."""
        # completed reads are hits, and the depth that they free serves this demand before it serves predictions
        num_completed = self._complete_reads(0.0) if self.num_in_flight else 0
        demand = self.scheduler.demand(store, keys, origin, self.clock.now_ns())
        if num_completed or demand.misses or demand.joined:
            self.pump()
        return None if demand.status is RequestStatus.BUSY else demand

    def slots_wait(self) -> Wait:
        """A wait for slots: over when a read has completed or a demand was released."""
        before = self.changes
        return Wait(None, lambda: [self.changes] if self.changes != before else None)

    def prefetch(
        self, store: str, keys: Sequence[PredictedKey], origin: Origin, priority: Priority, predictor: str
    ) -> PrefetchResult:
        """Plans reads of predicted keys, best first, and submits those that may start now."""
        prediction = self.scheduler.prefetch(store, keys, origin, self.clock.now_ns(), priority=priority, predictor=predictor)
        self.pump()
        return prediction

    def release(self, demand: Demand, *, drop: Collection[int] = ()) -> None:
        """Ends the pins of a demand, after evaluation; keys in `drop` leave their slots."""
        self.changes += 1
        self.scheduler.release(demand, drop=drop)

    def cancel(self, request: int) -> None:
        """Ends the generation of a request: its reads are given up, its pins end."""
        self.changes += 1
        self.scheduler.cancel(request)

    def mark(self, store: str, name: str, value: float, origin: Origin) -> None:
        """Notes a figure of the pass under way."""
        self.recorder.mark(store, name, value, origin, self.clock.now_ns())

    # ---- reads --------------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Submits the reads that may start now; reads that a busy reader refuses are queued again."""
        if not self._queue.num_waiting:
            return
        orders = self.scheduler.issue(self.clock.now_ns())
        if not orders:
            return
        sources = self._sources
        taken = self._reader.submit([sources[order.ticket.store].read(order) for order in orders])
        if taken < len(orders):
            self.scheduler.hand_back(orders[taken:])
            del orders[taken:]
        depth = self._reader.in_flight
        for order in orders:
            order.ticket.queue_depth = depth

    def collect(self) -> None:
        """Handles completed reads, without waiting."""
        if self.num_in_flight:
            self._collect(0.0)

    def stand_by(self, until_ns: int | None = None) -> None:
        """Waits until a read has completed, or until the clock says `until_ns`."""
        left = left_s(self.clock, until_ns)
        self._collect(_POLL_S if left is None else min(_POLL_S, left))

    @property
    def num_in_flight(self) -> int:
        """Reads at the reader."""
        return self.scheduler.reads.num_in_flight

    # ---- waiting ------------------------------------------------------------------------------------------------------

    def run(self, work: Loading[T]) -> T:
        """Drives one generator to its end. Raises RequestFailed when its bytes can't be had."""
        try:
            while True:
                wait = next(work)
                self.advance([wait])
                while not wait.is_ready():
                    for demand in wait.failures:
                        raise request_failed(demand) from demand.error
                    self.advance([wait])
        except StopIteration as end:
            return end.value

    def advance(self, waits: Sequence[Wait]) -> None:
        """While none of `waits` is ready: syncs one piece of compute; without a piece, waits exposed."""
        for wait in waits:
            if wait.sync_piece():
                self.collect()
                return
        self._wait_exposed(waits)

    def wait(self, demand: Demand | JointDemand, sync_piece: Callable[[], bool] = no_pieces) -> Loading[int]:
        """Waits for all keys of a demand; returns the exposed wait in nanoseconds."""
        keys = list(demand.tickets)
        exposed_ns = 0
        if not self.is_there(demand):
            wait = Wait(demand, lambda: keys if demand.have(keys) else None, keys, all_of_them=True, sync_piece=sync_piece)
            yield wait
            exposed_ns = wait.exposed_ns
        self._mark_asked(demand, keys)
        return exposed_ns

    def is_there(self, demand: Demand | JointDemand) -> bool:
        """Whether all reads of a demand have completed. Polls the reader; does not mark keys as used."""
        self.collect()
        return demand.have(demand.tickets)

    def use(
        self, demand: Demand | JointDemand, keys: Sequence[int], components: int, asked_ns: int, names: Sequence[str]
    ) -> None:
        """Marks `components` of `keys`, whose reads have completed, as used: fixes whether they were on time.

        A wave of reads demanded at `asked_ns` is noted for each part in `names` (gate_up, down); resident keys leave no trace.
        """
        self._mark_asked(demand, keys, components)
        if not self._notes_waves:
            return
        tickets = [demand.tickets[key] for key in keys if key in demand.tickets]
        if tickets:
            for name in names:
                part = _PART_BITS[name]
                ready_ns = max([ticket.arrival_ns(part) for ticket in tickets])
                self.recorder.wave(demand, name, asked_ns, ready_ns, count=len(tickets))

    def _mark_asked(self, demand: Demand | JointDemand, keys: Sequence[int], components: int = -1) -> None:
        """Marks complete keys as asked for by compute. Raises RequestFailed when the demand has failed."""
        if isinstance(demand, Demand) and demand.error is not None:
            raise request_failed(demand) from demand.error
        if demand.tickets:
            demand.missing(self.clock.now_ns(), keys, components)

    def _wait_exposed(self, waits: Sequence[Wait]) -> None:
        """Drains the device, then waits until one of `waits` is ready or has failed."""
        exact = [wait for wait in waits if wait.demand is not None]
        if not exact:
            self._await_progress()
            return
        clock = self.clock
        before_ns = clock.now_ns()
        self._drain(exact[0].origin)
        start_ns, ended = clock.now_ns(), None
        if start_ns > before_ns:
            # reads that completed while the device was busy cost no exposed wait
            self.collect()
            if first_ended(waits) is not None:
                return
            start_ns = clock.now_ns()
        while ended is None:
            now_ns = clock.now_ns()
            missing = [wait.mark_asked(now_ns) for wait in exact]
            self._collect(_POLL_S, missing[0] if len(waits) == 1 and exact[0].all_of_them else 1)
            ended = first_ended(waits)
        end_ns = clock.now_ns()
        for wait in exact:
            wait.exposed_ns += end_ns - start_ns
        if ended.ready_keys is not None and ended.demand is not None:
            self.recorder.wait(ended.demand, start_ns, end_ns, guarded=len(ended.ready_keys), consumed=len(ended.ready_keys))

    def _await_progress(self) -> None:
        if not self.num_in_flight:
            raise AssertionError("every lane waits for slots, and no read is on its way")
        self._collect(_POLL_S)

    def _collect(self, timeout_s: float, at_least: int = 1) -> None:
        done = self._complete_reads(timeout_s, at_least)
        if timeout_s and not done:
            self.scheduler.expire(self.clock.now_ns(), HANG_NS)
        self.pump()

    def _complete_reads(self, timeout_s: float, at_least: int = 1) -> int:
        done = self._reader.poll(timeout_s, at_least)
        if done:
            self.changes += len(done)
            for completion in done:
                self._complete_read(completion)
        return len(done)

    def _complete_read(self, completion: Completion) -> None:
        order = self.scheduler.reads.order(completion.key)
        order.ticket.read_calls += 1 / completion.together
        if completion.error is not None:
            self.scheduler.on_error(completion.key, completion.error)
            return
        self._sources[order.ticket.store].arrived(order)
        ticket = self.scheduler.on_ready(completion.key, ready_ns=completion.ready_ns, now_ns=self.clock.now_ns())
        if completion.check_ns:
            self.check_ns[owner_of(ticket.store)] += completion.check_ns


def request_failed(demand: Demand) -> RequestFailed:
    """The error of a request whose demand can't be met."""
    where = f"{demand.store} bytes of layer {demand.origin.layer}"
    return RequestFailed(f"{where} could not be read: {demand.error}; `workbench verify` tells what else is damaged")
