"""The scheduler: ties tickets, queue, lanes and slots together. It decides; others move bytes and tell it what came.

demand = scheduler.demand("expert", keys, Event(request=0, layer=3), now_ns)
orders = scheduler.issue(now_ns)                      # submit these, `hand_back` what a busy reader leaves
while demand.missing(now_ns):                         # wait, then for each completion:
    scheduler.on_ready(number, ready_ns=..., now_ns=...)
...                                                   # compute on demand.slots
scheduler.release(demand)                             # after evaluation
"""

from collections.abc import Callable, Collection, Iterable, Sequence

from workbench.scheduling.demand import Answer, Demand, PredictedKey, Prediction
from workbench.scheduling.lanes import Lanes, SchedulerConfig
from workbench.scheduling.lifecycle import Lifecycle
from workbench.scheduling.pool import Pool
from workbench.scheduling.queue import Order, Queue
from workbench.scheduling.slots import Loan
from workbench.scheduling.ticket import Event, Priority, Ticket, TicketState
from workbench.scheduling.traffic import Traffic


class Scheduler:
    """Pure state machine over one or more pools that share queue, lanes and disk. Times are the caller's nanoseconds."""

    def __init__(
        self,
        pools: Iterable[Pool],
        config: SchedulerConfig | None = None,
        *,
        on_final: Callable[[Ticket], None] | None = None,
    ) -> None:
        """`on_final` is called once with each ticket that reached its final state (for events and metrics)."""
        self.config = config or SchedulerConfig()
        self.pools = {pool.name: pool for pool in pools}
        for pool in self.pools.values():
            pool.on_final = on_final
        self.traffic = Traffic(self.pools, Lanes(self.config.lanes), Queue(self.config.queue_bounds))
        self._lives = Lifecycle(self.traffic, self.config.max_attempts)
        self._demands: dict[int, dict[Demand, None]] = {}
        self._generations: dict[int, int] = {}

    # ---- asking ---------------------------------------------------------------------------------------------------

    def demand(self, store: str, keys: Sequence[int], event: Event, now_ns: int) -> Demand:
        """Exact keys of one event: hits are protected, reads on their way are joined, the rest gets slots and tickets (P0).

        All or nothing: answers `busy`, with nothing changed, while too many slots are leased. Raises ValueError when the
        pool can never hold the event: run it in passes.
        """
        pool = self.pools[store]
        keys = list(dict.fromkeys(keys))
        if len(keys) > pool.slots.capacity:
            raise ValueError(f"an event of {len(keys)} keys needs as many slots, pool {store} has {pool.slots.capacity}")
        demand = Demand(store=store, event=event, generation=self.generation(event.request))
        if not _hold(pool, demand, keys):
            pool.counters.busy += len(keys)
            demand.answer, demand.open = Answer.BUSY, False
            return demand
        self._demands.setdefault(event.request, {})[demand] = None
        if pool.slots.num_protected:
            pool.slots.unprotect(event.request, event.place)
        self._lives.cover(pool, demand, keys, now_ns)
        return demand

    def prefetch(
        self,
        store: str,
        keys: Sequence[PredictedKey],
        event: Event,
        now_ns: int,
        *,
        priority: Priority,
        predictor: str = "",
        generation: int | None = None,
    ) -> Prediction:
        """Predicted keys, best first. They get slots when they are issued, and none that a more urgent class needs.

        Resident keys are protected until the event's layer is demanded, at most as many as the class may fill slots.
        A prediction made for an older `generation` of its request, or while slots are lent, is refused whole. Raises
        ValueError on P0.
        """
        if priority == Priority.P0:
            raise ValueError("P0 is for exact demands")
        pool, current = self.pools[store], self.generation(event.request)
        if pool.slots.num_lent or (generation is not None and generation != current):
            return Prediction(answer=Answer.BUSY, refused=tuple(each.key for each in keys))
        tickets: dict[int, Ticket] = {}
        protected: list[int] = []
        refused: list[int] = []
        num_before, most_protected = pool.counters.predicted, self.config.lanes.budgets[priority].slots
        for each in _once(keys):
            if each.key not in pool.tickets and pool.slots.slot_of(each.key) is not None:
                if pool.slots.num_protected < most_protected:
                    pool.slots.protect(each.key, event.request, event.place)
                    protected.append(each.key)
                else:
                    refused.append(each.key)
            elif (ticket := self._lives.predict(pool, each, event, current, now_ns, priority, predictor)) is not None:
                tickets[each.key] = ticket
            else:
                refused.append(each.key)
        pool.counters.busy += len(refused)
        pool.counters.protected += len(protected)
        return Prediction(
            answer=Answer.BUSY if refused else Answer.QUEUED if tickets else Answer.DONE,
            tickets=tuple(tickets.values()),
            num_planned=pool.counters.predicted - num_before,
            protected=tuple(protected),
            refused=tuple(refused),
        )

    def generation(self, request: int) -> int:
        """Epoch of a request; `cancel` ends it and begins the next."""
        return self._generations.get(request, 0)

    # ---- reads go out and come back -------------------------------------------------------------------------------

    def issue(self, now_ns: int, limit: int | None = None) -> list[Order]:
        """Reads to submit now, most urgent first. Predictions whose deadline has passed are withdrawn instead."""
        orders: list[Order] = []
        while (limit is None or len(orders) < limit) and (order := self.traffic.head()) is not None:
            ticket = order.ticket
            if not ticket.demanded and not ticket.issued and ticket.deadline_ns < now_ns:
                self._lives.give_up(ticket)
            elif ticket.slot < 0 and not self._lives.place(ticket):
                break
            else:
                self.traffic.start(order, now_ns)
                orders.append(order)
        return orders

    def hand_back(self, orders: Iterable[Order]) -> None:
        """Reads that a busy reader did not take wait again."""
        for order in orders:
            _, wanted = self.traffic.land(order.number)
            order.ticket.physical_bytes -= order.num_bytes
            self.pools[order.ticket.store].counters.read_ops -= 1
            if wanted:
                self.traffic.wait_again(order)
                self._lives.unplace(order.ticket)

    def on_ready(self, number: int, *, ready_ns: int, now_ns: int) -> Ticket:
        """The bytes of order `number` are in its slot, and were checked. A stale generation publishes nothing."""
        order, wanted = self.traffic.land(number)
        ticket = order.ticket
        if wanted:
            ticket.ready_bits |= order.bits
            ticket.arrivals[order.bits] = ready_ns
            if ticket.ready_bits == ticket.wanted:
                self._lives.complete(ticket, ready_ns, now_ns)
            elif not ticket.reads_in_flight:
                ticket.move(TicketState.QUEUED)
        return ticket

    def on_error(self, number: int, error: Exception) -> Ticket:
        """Order `number` failed: it is tried again a bounded number of times when demanded, else dropped.

        After the last attempt the demands that hold the ticket carry the error; no other ticket is touched.
        """
        order, wanted = self.traffic.land(number)
        ticket = order.ticket
        if wanted:
            ticket.attempts += 1
            if ticket.demanded and ticket.attempts < self.config.max_attempts:
                self.pools[ticket.store].counters.retries += 1
                self.traffic.wait_again(order)
            else:
                self._lives.fail(ticket, error)
        return ticket

    def expire(self, now_ns: int, hang_ns: int) -> list[Ticket]:
        """Gives up reads in flight for `hang_ns` or longer; a demanded key starts anew in another slot.

        The slot of a read that hangs stays out of use until the read ends. Returns the tickets given up.
        """
        hung = [o.ticket for o in self.traffic.flying if now_ns - o.issue_ns >= hang_ns and not o.ticket.final]
        hung = list(dict.fromkeys(hung))
        for ticket in hung:
            if ticket.demanded:
                self._lives.replace(ticket, now_ns)
            else:
                self._lives.give_up(ticket)
        return hung

    # ---- letting go -----------------------------------------------------------------------------------------------

    def release(self, demand: Demand, *, drop: Collection[int] = ()) -> bool:
        """Ends a demand's leases, after evaluation. False, and nothing happens, when they had ended already.

        Keys of it in `drop` were wanted this once: they leave their slots, unless somebody else holds them.
        """
        if not demand.open:
            return False
        demand.open = False
        mine = self._demands[demand.event.request]
        del mine[demand]
        if not mine:
            del self._demands[demand.event.request]
        for ticket in demand.tickets.values():
            if not ticket.final:
                self._lives.unlease(ticket, demand)
        pool = self.pools[demand.store]
        pool.slots.release_all(demand.slots)
        for key in drop:
            if key in demand.slots:
                pool.drop(key)
        return True

    def drop(self, store: str, keys: Iterable[int]) -> None:
        """Resident keys that are wanted no longer leave their slots, unless somebody holds them."""
        for key in keys:
            self.pools[store].drop(key)

    def cancel(self, request: int) -> int:
        """Ends a request's generation: its demands and predictions are given up, once. Returns the demands ended.

        Reads that wait are withdrawn, those in flight become stale; what another request holds too goes on.
        """
        self._generations[request] = self.generation(request) + 1
        demands = list(self._demands.get(request, ()))
        for demand in demands:
            self.release(demand)
        for pool in self.pools.values():
            pool.slots.unprotect(request)
            for ticket in [ticket for ticket in pool.tickets.values() if request in ticket.predictors]:
                ticket.predictors.discard(request)
                if not ticket.predictors:
                    self._lives.give_up(ticket)
        return len(demands)

    def reject(self, request: int, position: int) -> list[Ticket]:
        """Tokens of `request` from `position` on were rejected: predictions for them alone wait behind everything else (P3).

        Returns the tickets whose reads had not started; reads in flight end where they are.
        """
        demoted = [
            ticket
            for pool in self.pools.values()
            for ticket in pool.tickets.values()
            if ticket.predictors == {request} and not ticket.issued and _first_position(ticket) >= position
        ]
        for ticket in demoted:
            self.traffic.reclass(ticket, Priority.P3)
        return demoted

    def cancel_ticket(self, ticket: Ticket) -> bool:
        """Gives up a prediction for all who made it; False when it is demanded, has come or has ended."""
        if ticket.demanded or ticket.state not in (TicketState.QUEUED, TicketState.IN_FLIGHT):
            return False
        self._lives.give_up(ticket)
        return True

    def lend(self, store: str, count: int) -> Loan | None:
        """Takes the last `count` slots out of use, for memory that lies in one piece; None while that can't be had.

        The policy says who must leave; the owner copies what the loan moves, before it writes there. Predictions that
        have not come are given up, and none is planned until `take_back`.
        """
        pool = self.pools[store]
        for ticket in list(pool.tickets.values()):
            self.cancel_ticket(ticket)
        loan = pool.slots.lend(count)
        if loan is not None:
            pool.evicted(loan.evicted)
            pool.moved(loan.moves)
        return loan

    def take_back(self, store: str) -> None:
        """Lent slots are in use again, empty; nobody may read into them any more."""
        self.pools[store].slots.take_back()

    def finish(self, request: int) -> None:
        """A request is over: its epoch is forgotten. Raises ValueError while it still holds demands."""
        if request in self._demands:
            raise ValueError(f"request {request} still holds {len(self._demands[request])} demands")
        self._generations.pop(request, None)

    def close(self) -> None:
        """Accounts for predictions that nobody used. Raises ValueError while demands are open."""
        if self._demands:
            raise ValueError(f"requests {sorted(self._demands)} still hold demands")
        for pool in self.pools.values():
            for ticket in list(pool.tickets.values()):
                self._lives.give_up(ticket)
            for ticket in pool.unused.values():
                pool.close(ticket, TicketState.RELEASED)
            pool.unused.clear()


def _once(keys: Sequence[PredictedKey]) -> Iterable[PredictedKey]:
    """Each key once, as it is named first."""
    first: dict[int, PredictedKey] = {}
    for each in keys:
        first.setdefault(each.key, each)
    return first.values()


def _first_position(ticket: Ticket) -> int:
    """Position of the first token that a ticket was predicted for."""
    return ticket.event.position + (ticket.token_mask & -ticket.token_mask).bit_length() - 1


def _hold(pool: Pool, demand: Demand, keys: Sequence[int]) -> bool:
    """Leases the keys of an event: protects all that is present, only then admits the rest. False when that can't be had."""
    slots = pool.slots
    present, absent = slots.partition(keys)
    room = slots.num_available - len(absent)
    # where even as many more would find room, no lease needs to be counted
    if room < len(present) and room < sum(not slots.leases(key) for key in present):
        return False
    slots.policy.start_event()
    slots.lease_all(present, demand.slots)
    slots.touch(present)
    pool.evicted(slots.admit(absent))
    slots.lease_all(absent, demand.slots)
    return True
