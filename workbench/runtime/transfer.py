"""Moves what the scheduler orders: submits reads, tells the scheduler what came, and waits for the smallest set needed."""

from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Protocol, TypeVar

from workbench.errors import BadInput
from workbench.readers.base import Completion, Read, Reader
from workbench.readers.clock import Clock
from workbench.scheduling.demand import Answer, Demand, Prediction
from workbench.scheduling.queue import Order
from workbench.scheduling.recorder import Recorder, owner_of
from workbench.scheduling.scheduler import Scheduler
from workbench.scheduling.ticket import Event, Priority, Ticket
from workbench.schema import EventLog
from workbench.units import NS_PER_S

_POLL_S = 0.5
HANG_NS = 30 * NS_PER_S
"""A read that takes longer is given up and a demanded one starts anew: far above any disk's worst second."""


class RequestFailed(BadInput):
    """Demanded bytes could not be had; the request gives up, its committed state is untouched."""


class Source(Protocol):
    """Turns an order into a read: where the bytes lie and where they go."""

    def read(self, order: Order) -> Read:
        """The read of `order`; its key is the order's number."""

    def arrived(self, order: Order) -> None:
        """The bytes of `order` are in its slot and were checked; called before anybody may use them."""


Stage = TypeVar("Stage", bound=Sized)
"""What can run next: as long as it has keys."""


class Transfer:
    """One scheduler, one reader, a source for each pool. Used by the thread that computes."""

    def __init__(
        self,
        scheduler: Scheduler,
        reader: Reader,
        sources: Mapping[str, Source],
        log: EventLog,
        clock: Clock,
        drain: Callable[[], None],
    ) -> None:
        """`drain` returns when nothing computes any more: only from then on does compute stand still."""
        self.scheduler = scheduler
        self.clock = clock
        self.recorder = Recorder(log)
        self._reader = reader
        self._sources = sources
        self._drain = drain
        self.check_ns = {owner_of(name): 0 for name in sources}
        """Time that checksums took on the reader's threads, of records and pages."""
        self._orders: dict[int, Order] = {}
        for pool in scheduler.pools.values():
            pool.on_final = self.recorder.ticket

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
        now_ns = self.clock.now_ns()
        while (demand := self.ask(store, keys, event)) is None:
            self.stand_by()
        self.recorder.demand(demand, keys, now_ns, position=position, logical_bytes=logical_bytes, num_rows=num_rows)
        return demand

    def ask(self, store: str, keys: Sequence[int], event: Event) -> Demand | None:
        """The same if it can be had at once, without a note; None while too many slots are held."""
        demand = self.scheduler.demand(store, keys, event, self.clock.now_ns())
        if demand.misses:
            self.pump()
        return None if demand.answer is Answer.BUSY else demand

    def prefetch(self, store: str, keys: Sequence[int], event: Event, priority: Priority) -> Prediction:
        """Predicted keys, best first; sends off what may go now."""
        prediction = self.scheduler.prefetch(store, keys, event, self.clock.now_ns(), priority=priority)
        self.pump()
        return prediction

    def mark(self, store: str, name: str, value: float, event: Event, *, position: int) -> None:
        """Notes a figure of the pass under way."""
        self.recorder.mark(store, name, value, event, self.clock.now_ns(), position=position)

    def pump(self) -> None:
        """Submits what may go now; a busy reader's share waits again."""
        orders = self.scheduler.issue(self.clock.now_ns())
        if not orders:
            return
        taken = self._reader.submit([self._sources[order.lane].read(order) for order in orders])
        self.recorder.submitted([order.ticket for order in orders[:taken]], self._reader.in_flight)
        for order in orders[:taken]:
            self._orders[order.number] = order
        self.scheduler.hand_back(orders[taken:])

    def collect(self) -> None:
        """Takes what has come, without waiting."""
        if self._orders:
            self._collect(0.0)

    def stand_by(self) -> None:
        """Waits until something has come."""
        self._collect(_POLL_S)

    def take(self, demand: Demand, keys: Sequence[int], name: str, components: int, asked_ns: int, *, position: int) -> None:
        """Compute takes `components` of `keys`, all of which are there: whether they were on time is fixed now.

        A wave of reads demanded at `asked_ns` is noted under `name`; resident keys leave no trace.
        """
        self._missing(demand, keys, components)
        tickets = [demand.tickets[key] for key in keys if key in demand.tickets]
        if tickets:
            ready_ns = max(ticket.arrival_ns(components) for ticket in tickets)
            self.recorder.wave(demand, name, asked_ns, ready_ns, position=position, count=len(tickets))

    def is_there(self, demand: Demand) -> bool:
        """Whether all keys of a demand have come. Nobody asks for them by it."""
        self.collect()
        return demand.have(demand.tickets)

    def wait(self, demand: Demand, *, position: int) -> None:
        """Returns when all keys of a demand are there. Raises RequestFailed when they can't be had."""
        keys = list(demand.tickets)
        if not self.is_there(demand):
            self.stand_still(demand, lambda: keys if demand.have(keys) else None, keys, position=position, all_of_them=True)
        self._missing(demand, keys)

    def stand_still(
        self,
        demand: Demand,
        ready: Callable[[], Stage | None],
        keys: Sequence[int],
        *,
        position: int,
        all_of_them: bool = False,
    ) -> Stage:
        """Lets compute finish and waits until `ready` finds a stage that has its bytes; what it finds is returned.

        `keys`: those that compute would take now, the ones that come first or `all_of_them`. Raises RequestFailed when one of
        them can't be had.
        """
        self._drain()
        self.collect()
        start_ns = self.clock.now_ns()
        if (stage := ready()) is not None:
            return stage
        while stage is None:
            missing = self._missing(demand, keys)
            self._collect(_POLL_S, sum(len(ticket.orders) for ticket in missing) if all_of_them else 1)
            stage = ready()
        end_ns = self.clock.now_ns()
        self.recorder.wait(demand, start_ns, end_ns, position=position, guarded=len(stage), consumed=len(stage))
        return stage

    def _missing(self, demand: Demand, keys: Sequence[int], components: int = -1) -> list[Ticket]:
        try:
            return demand.missing(self.clock.now_ns(), keys, components)
        except Exception as error:
            where = f"{demand.store} bytes of layer {demand.event.layer}"
            raise RequestFailed(f"{where} could not be read: {error}; `workbench verify` tells what else is damaged") from error

    def _collect(self, timeout_s: float, at_least: int = 1) -> None:
        done = self._reader.poll(timeout_s, at_least)
        for completion in done:
            self._land(completion)
        if timeout_s and not done:
            self.scheduler.expire(self.clock.now_ns(), HANG_NS)
        self.pump()

    def _land(self, completion: Completion) -> None:
        order = self._orders.pop(completion.key)
        if not order.ticket.final:
            self.recorder.landed(order.ticket, completion.together)
        if completion.error is not None:
            self.scheduler.on_error(completion.key, completion.error)
            return
        self._sources[order.lane].arrived(order)
        ticket = self.scheduler.on_ready(completion.key, ready_ns=completion.ready_ns, now_ns=self.clock.now_ns())
        self.check_ns[owner_of(ticket.store)] += completion.check_ns
