"""What the runtime's transfer does, on a virtual clock: sends the scheduler's orders to the model of a disk and waits."""

import heapq
from collections.abc import Iterable, Sequence

from workbench.readers.clock import VirtualClock
from workbench.readers.disk import Disk
from workbench.scheduling.demand import Answer, Demand
from workbench.scheduling.recorder import Recorder
from workbench.scheduling.scheduler import Scheduler
from workbench.scheduling.ticket import Event, Priority, Ticket
from workbench.schema import EventLog


class Wire:
    """One scheduler and one disk. Reads end while compute goes on; compute learns of them when it looks."""

    def __init__(
        self,
        scheduler: Scheduler,
        disk: Disk,
        clock: VirtualClock,
        log: EventLog,
        *,
        ask_ns: int = 0,
        behind_ns: int = 0,
        take_ns: int = 0,
    ) -> None:
        """What each read costs the thread that computes: before it goes off, just behind that, and when it is seen."""
        self.scheduler = scheduler
        self.clock = clock
        self._recorder = Recorder(log)
        self._disk = disk
        self._ask_ns, self._behind_ns, self._take_ns = ask_ns, behind_ns, take_ns
        self._coming: list[tuple[int, int, Ticket]] = []
        for pool in scheduler.pools.values():
            pool.on_final = self._recorder.ticket

    def demand(self, store: str, keys: Sequence[int], event: Event, *, position: int, logical_bytes: int) -> Demand:
        """Demands the keys of one event and sends off the reads that it needs."""
        self._land()
        asked_ns = self.clock.now_ns()
        while (demand := self.scheduler.demand(store, keys, event, self.clock.now_ns())).answer is Answer.BUSY:
            self._await_next()
        self._recorder.demand(demand, keys, asked_ns, position=position, logical_bytes=logical_bytes, num_rows=None)
        self._pump()
        return demand

    def prefetch(self, keys: Sequence[int], event: Event, priority: Priority) -> None:
        """Predicted records, best first."""
        if keys:
            self.scheduler.prefetch("expert", keys, event, self.clock.now_ns(), priority=priority)
            self._pump()

    def wait(self, demand: Demand, *, position: int, keys: Iterable[int] | None = None) -> None:
        """Moves the clock until `keys` (all by default) are there."""
        self._look()
        keys = None if keys is None else list(keys)
        start_ns = self.clock.now_ns()
        if not demand.missing(start_ns, keys):
            return
        while demand.missing(self.clock.now_ns(), keys):
            self._await_next()
        guarded = len(demand.slots) if keys is None else len(keys)
        self._log_wait(demand, start_ns, position, guarded, guarded)

    def wait_for_some(self, demand: Demand, keys: Sequence[int], count: int, *, position: int) -> list[int]:
        """Those of `keys` that are there; moves the clock until there are `count`."""
        self._look()
        start_ns = self.clock.now_ns()
        while len(ready := [key for key in keys if is_ready(demand, key)]) < count:
            demand.missing(self.clock.now_ns(), keys)
            self._await_next()
        if self.clock.now_ns() > start_ns:
            self._log_wait(demand, start_ns, position, count, len(ready))
        demand.missing(self.clock.now_ns(), ready)
        return ready

    def idle_until(self, time_ns: int) -> None:
        """Nobody computes; reads end and others go until the time has come."""
        while self._coming and self._coming[0][0] <= time_ns:
            self._await_next()
        self.clock.sleep_until(time_ns)

    def drain(self) -> None:
        """Lets all reads end."""
        while self._coming:
            self._await_next()

    def _await_next(self) -> None:
        if not self._coming:
            raise AssertionError("compute waits for bytes that nobody reads")
        self.clock.sleep_until(self._coming[0][0])
        self._look()

    def _look(self) -> None:
        """Learns what has come, and sends off what that made room for."""
        self._land()
        self._pump()

    def _land(self) -> None:
        """Tells the scheduler of the reads that have ended by now; what ends while it is told is seen at the next look."""
        looked_ns = self.clock.now_ns()
        while self._coming and self._coming[0][0] <= looked_ns:
            ready_ns, number, ticket = heapq.heappop(self._coming)
            self._spend(self._take_ns)
            if not ticket.final:
                self._recorder.landed(ticket, together=1)
            self.scheduler.on_ready(number, ready_ns=ready_ns, now_ns=self.clock.now_ns())

    def _pump(self) -> None:
        """Sends off what may go now, in one batch."""
        orders = self.scheduler.issue(self.clock.now_ns())
        self._spend(self._ask_ns * len(orders))
        now_ns = self.clock.now_ns()
        for order in orders:
            heapq.heappush(self._coming, (self._disk.ready_ns(now_ns, order.num_bytes), order.number, order.ticket))
            self._recorder.submitted([order.ticket], len(self._coming))
        self._spend(self._behind_ns * len(orders))

    def _spend(self, duration_ns: int) -> None:
        self.clock.sleep_until(self.clock.now_ns() + duration_ns)

    def _log_wait(self, demand: Demand, start_ns: int, position: int, guarded: int, consumed: int) -> None:
        end_ns = self.clock.now_ns()
        self._recorder.wait(demand, start_ns, end_ns, position=position, guarded=guarded, consumed=consumed)


def is_ready(demand: Demand, key: int) -> bool:
    """Whether the bytes of a key of this demand are all there."""
    ticket = demand.tickets.get(key)
    return ticket is None or ticket.ready_bits == ticket.wanted
