"""Moves what the scheduler orders: submits reads, tells the scheduler what came, and waits for the smallest set needed."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from workbench.readers.base import Completion, Read, Reader
from workbench.readers.clock import Clock
from workbench.scheduling.demand import Demand
from workbench.scheduling.queue import Order
from workbench.scheduling.recorder import Recorder
from workbench.scheduling.scheduler import Scheduler
from workbench.scheduling.ticket import Event, Ticket
from workbench.schema import EventLog
from workbench.units import NS_PER_S

_POLL_S = 0.5
HANG_NS = 30 * NS_PER_S
"""A read that takes longer is given up and a demanded one starts anew: far above any disk's worst second."""


class RequestFailed(RuntimeError):
    """Demanded bytes could not be had; the request gives up, its committed state is untouched."""


class Source(Protocol):
    """Turns an order into a read: where the bytes lie and where they go."""

    def read(self, order: Order) -> Read:
        """The read of `order`; its key is the order's number."""

    def arrived(self, order: Order) -> None:
        """The bytes of `order` are in its slot and were checked; called before anybody may use them."""


class Transfer:
    """One scheduler, one reader, a source for each pool. Used by the thread that computes."""

    def __init__(self, scheduler: Scheduler, reader: Reader, sources: Mapping[str, Source], log: EventLog, clock: Clock) -> None:
        self.scheduler = scheduler
        self._recorder = Recorder(log)
        self._reader = reader
        self._clock = clock
        self._sources = sources
        self.check_ns = dict.fromkeys(sources, 0)
        """Time that checksums took on the reader's threads, by pool."""
        self._orders: dict[int, Order] = {}
        for pool in scheduler.pools.values():
            pool.on_final = self._recorder.ticket

    def demand(
        self,
        store: str,
        keys: Sequence[int],
        event: Event,
        *,
        position: int,
        logical_bytes: int,
        num_rows: int | None = None,
    ) -> Demand:
        """Demands the exact keys of one event and sends off the reads that it needs.

        `logical_bytes`: what was asked for, records or `num_rows` n-gram rows.
        """
        now_ns = self._clock.now_ns()
        demand = self.scheduler.demand(store, keys, event, now_ns)
        while demand.answer == "busy":
            self._collect(_POLL_S)
            demand = self.scheduler.demand(store, keys, event, self._clock.now_ns())
        self._recorder.demand(demand, keys, now_ns, position=position, logical_bytes=logical_bytes, num_rows=num_rows)
        if demand.misses:
            self.pump()
        return demand

    def pump(self) -> None:
        """Submits what may go now; a busy reader's share waits again."""
        orders = self.scheduler.issue(self._clock.now_ns())
        if not orders:
            return
        taken = self._reader.submit([self._sources[order.lane].read(order) for order in orders])
        self._recorder.submitted([order.ticket for order in orders[:taken]], self._reader.in_flight)
        for order in orders[:taken]:
            self._orders[order.number] = order
        self.scheduler.hand_back(orders[taken:])

    def wait(
        self,
        demand: Demand,
        *,
        position: int,
        keys: Sequence[int] | None = None,
        components: int = -1,
        consumed: int | None = None,
    ) -> None:
        """Stands still until `components` of `keys` are there. Raises RequestFailed when they can't be had.

        `consumed`: how many of them the stage behind this wait uses; all where nothing is said.
        """
        start_ns = self._clock.now_ns()
        if not self._missing(demand, keys, components):
            return
        guarded = len(demand.slots) if keys is None else len(keys)
        while self._missing(demand, keys, components):
            self._collect(_POLL_S)
        consumed = guarded if consumed is None else consumed
        end_ns = self._clock.now_ns()
        self._recorder.wait(demand, start_ns, end_ns, position=position, guarded=guarded, consumed=consumed)

    def _missing(self, demand: Demand, keys: Sequence[int] | None, components: int) -> list[Ticket]:
        try:
            return demand.missing(self._clock.now_ns(), keys, components)
        except Exception as error:
            where = f"{demand.store} bytes of layer {demand.event.layer}"
            raise RequestFailed(f"{where} could not be read: {error}") from error

    def _collect(self, timeout_s: float) -> None:
        done = self._reader.poll(timeout_s)
        for completion in done:
            self._land(completion)
        if not done:
            self.scheduler.expire(self._clock.now_ns(), HANG_NS)
        self.pump()

    def _land(self, completion: Completion) -> None:
        order = self._orders.pop(completion.key)
        if completion.error is not None:
            self.scheduler.on_error(completion.key, completion.error)
            return
        self._sources[order.lane].arrived(order)
        ticket = self.scheduler.on_ready(completion.key, ready_ns=completion.ready_ns, now_ns=self._clock.now_ns())
        self.check_ns[ticket.store] += completion.check_ns
