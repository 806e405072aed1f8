"""The scheduler: ties tickets, queue, lanes and slots together. It decides; others move bytes and tell it what came.

demand = scheduler.demand("expert", keys, Event(request=0, layer=3), now_ns)
orders = scheduler.issue(now_ns)                      # submit these, `hand_back` what a busy reader leaves
while demand.missing(now_ns):                         # wait, then for each completion:
    scheduler.on_ready(number, ready_ns=..., now_ns=...)
...                                                   # compute on demand.slots
scheduler.release(demand, now_ns)                     # after evaluation
"""

import itertools
from collections.abc import Callable, Iterable, Sequence

from workbench.scheduling.demand import Answer, Demand, Prediction
from workbench.scheduling.lanes import Lanes, SchedulerConfig
from workbench.scheduling.pool import Pool
from workbench.scheduling.queue import Order, Queue
from workbench.scheduling.ticket import Event, Intent, Priority, Ticket, TicketState
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
        self._demands: dict[int, dict[Demand, None]] = {}
        self._generations: dict[int, int] = {}
        self._tickets = itertools.count()
        self._completions = itertools.count()

    # ---- asking ---------------------------------------------------------------------------------------------------

    def demand(self, store: str, keys: Sequence[int], event: Event, now_ns: int) -> Demand:
        """Exact keys of one event: hits are protected, reads on their way are joined, the rest gets slots and tickets (P0).

        All or nothing: answers `busy`, with nothing changed, while too many slots are leased. Raises ValueError when the
        pool can never hold the event: run it in passes.
        """
        pool = self.pools[store]
        keys = list(dict.fromkeys(keys))
        if len(keys) > pool.slots.num_slots:
            raise ValueError(f"an event of {len(keys)} keys needs as many slots, pool {store} has {pool.slots.num_slots}")
        demand = Demand(store=store, event=event, generation=self.generation(event.request))
        if not _hold(pool, demand, keys):
            pool.counters.busy += len(keys)
            demand.answer, demand.open = Answer.BUSY, False
            return demand
        self._demands.setdefault(event.request, {})[demand] = None
        self._cover(pool, demand, keys, now_ns)
        return demand

    def prefetch(
        self,
        store: str,
        keys: Sequence[int],
        event: Event,
        now_ns: int,
        *,
        priority: Priority,
        confidence: float = 1.0,
        generation: int | None = None,
    ) -> Prediction:
        """Predicted keys, best first. They get slots when they are issued, and none that a more urgent class needs.

        A prediction made for an older `generation` of its request is refused whole. Raises ValueError on P0.
        """
        if priority == Priority.P0:
            raise ValueError("P0 is for exact demands")
        pool = self.pools[store]
        if generation is not None and generation != self.generation(event.request):
            return Prediction(answer=Answer.BUSY, refused=tuple(keys))
        absent = [key for key in dict.fromkeys(keys) if key in pool.tickets or pool.slots.slot_of(key) is None]
        tickets = {key: self._predict(pool, key, event, now_ns, priority, confidence) for key in absent}
        refused = tuple(key for key, ticket in tickets.items() if ticket is None)
        pool.counters.busy += len(refused)
        return Prediction(
            answer=Answer.BUSY if refused else Answer.QUEUED if tickets else Answer.DONE,
            tickets=tuple(ticket for ticket in tickets.values() if ticket is not None),
            refused=refused,
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
                self._give_up(ticket)
            elif ticket.slot < 0 and not self._place(ticket):
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
            self.pools[order.lane].counters.read_ops -= 1
            if wanted:
                self.traffic.wait_again(order)
                self._unplace(order.ticket)

    def on_ready(self, number: int, *, ready_ns: int, now_ns: int) -> Ticket:
        """The bytes of order `number` are in its slot, and were checked. A stale generation publishes nothing."""
        order, wanted = self.traffic.land(number)
        ticket = order.ticket
        if wanted:
            ticket.ready_bits |= order.bits
            if ticket.ready_bits == ticket.wanted:
                self._complete(ticket, ready_ns, now_ns)
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
                self._fail(ticket, error)
        return ticket

    def expire(self, now_ns: int, hang_ns: int) -> list[Ticket]:
        """Gives up reads in flight for `hang_ns` or longer; a demanded key starts anew in another slot.

        The slot of a read that hangs stays out of use until the read ends. Returns the tickets given up.
        """
        hung = [o.ticket for o in self.traffic.flying if now_ns - o.issue_ns >= hang_ns and not o.ticket.final]
        hung = list(dict.fromkeys(hung))
        for ticket in hung:
            if ticket.demanded:
                self._replace(ticket, now_ns)
            else:
                self._give_up(ticket)
        return hung

    # ---- letting go -----------------------------------------------------------------------------------------------

    def release(self, demand: Demand) -> bool:
        """Ends a demand's leases, after evaluation. False, and nothing happens, when they had ended already."""
        if not demand.open:
            return False
        demand.open = False
        mine = self._demands[demand.event.request]
        del mine[demand]
        if not mine:
            del self._demands[demand.event.request]
        for ticket in demand.tickets.values():
            if not ticket.final:
                self._unlease(ticket, demand)
        for key in demand.slots:
            self.pools[demand.store].slots.release(key)
        return True

    def cancel(self, request: int) -> int:
        """Ends a request's generation: its demands and predictions are given up, once. Returns the demands ended.

        Reads that wait are withdrawn, those in flight become stale; what another request holds too goes on.
        """
        self._generations[request] = self.generation(request) + 1
        demands = list(self._demands.get(request, ()))
        for demand in demands:
            self.release(demand)
        for pool in self.pools.values():
            for ticket in [ticket for ticket in pool.tickets.values() if request in ticket.predictors]:
                ticket.predictors.discard(request)
                if not ticket.predictors:
                    self._give_up(ticket)
        return len(demands)

    def cancel_ticket(self, ticket: Ticket) -> bool:
        """Gives up a prediction for all who made it; False when it is demanded, has come or has ended."""
        if ticket.demanded or ticket.state not in (TicketState.QUEUED, TicketState.IN_FLIGHT):
            return False
        self._give_up(ticket)
        return True

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
                self._give_up(ticket)
            for ticket in pool.unused.values():
                pool.close(ticket, TicketState.RELEASED)
            pool.unused.clear()

    # ---- a ticket's life ------------------------------------------------------------------------------------------

    def _cover(self, pool: Pool, demand: Demand, keys: Sequence[int], now_ns: int) -> None:
        """Sorts the keys of a held demand into hits, joined and misses, and leases their tickets."""
        misses = []
        for key in keys:
            ticket = pool.tickets.get(key) or pool.unused.pop(key, None)
            if ticket is None and pool.slots.is_resident(key):
                demand.hits.append(key)
                continue
            if ticket is None:
                demand.misses.append(key)
                ticket = self._plan(pool, key, demand.event, now_ns, Intent.EXACT, Priority.P0)
                misses.append(ticket)
            elif ticket.state is TicketState.READY:
                demand.hits.append(key)
                ticket.move(TicketState.LEASED)
            else:
                demand.joined.append(key)
                self._promote(pool, ticket, demand)
            self._lease(pool, ticket, demand)
        self.traffic.enqueue(pool, misses)
        demand.answer = Answer.QUEUED if demand.joined or misses else Answer.DONE
        pool.counters.count_demand(demand)

    def _plan(
        self, pool: Pool, key: int, event: Event, now_ns: int, intent: Intent, priority: Priority, confidence: float = 1.0
    ) -> Ticket:
        ticket = Ticket(
            number=next(self._tickets),
            store=pool.name,
            digest=pool.digest,
            key=key,
            intent=intent,
            priority=priority,
            event=event,
            generation=self.generation(event.request),
            confidence=confidence,
            deadline_ns=event.deadline_ns,
            wanted=pool.all_bits,
            submit_ns=now_ns,
            demanded=intent is Intent.EXACT,
        )
        pool.tickets[key] = ticket
        return ticket

    def _predict(self, pool: Pool, key: int, event: Event, now_ns: int, priority: Priority, confidence: float) -> Ticket | None:
        ticket = pool.tickets.get(key)
        if ticket is None:
            if not self.traffic.has_room(pool, key, priority):
                return None
            ticket = self._plan(pool, key, event, now_ns, Intent.PREDICTED, priority, confidence)
            pool.counters.predicted += 1
            self.traffic.enqueue(pool, [ticket])
        elif not ticket.demanded:
            self._hasten(ticket, priority, event.deadline_ns)
        if not ticket.demanded:
            ticket.predictors.add(event.request)
        return ticket

    def _hasten(self, ticket: Ticket, priority: Priority, deadline_ns: int) -> None:
        if priority < ticket.priority or deadline_ns < ticket.deadline_ns:
            ticket.deadline_ns = min(ticket.deadline_ns, deadline_ns)
            self.traffic.reclass(ticket, min(ticket.priority, priority))

    def _promote(self, pool: Pool, ticket: Ticket, demand: Demand) -> None:
        """An exact demand joins: the ticket becomes as urgent as the demand, and exact if no read was issued for it yet."""
        if not ticket.demanded:
            ticket.demanded = True
            ticket.predictors.clear()
            ticket.intent = ticket.intent if ticket.issued else Intent.EXACT
            pool.counters.promoted += 1
        self._hasten(ticket, Priority.P0, demand.event.deadline_ns)

    def _lease(self, pool: Pool, ticket: Ticket, demand: Demand) -> None:
        demand.tickets[ticket.key] = ticket
        ticket.demands.append(demand)
        ticket.leases += 1
        if ticket.slot < 0:
            slot = demand.slots[ticket.key]
            self.traffic.settle(ticket, slot, pool.slots.generation(slot))

    def _unlease(self, ticket: Ticket, demand: Demand) -> None:
        ticket.demands.remove(demand)
        ticket.leases -= 1
        if ticket.leases:
            return
        if ticket.state is TicketState.LEASED:
            self.pools[ticket.store].close(ticket, TicketState.RELEASED)
        else:
            del demand.slots[ticket.key]
            self._give_up(ticket)

    def _place(self, ticket: Ticket) -> bool:
        """A slot for a prediction that is about to be read; False while none is to be had."""
        pool = self.pools[ticket.store]
        if not pool.slots.num_available:
            return False
        pool.evicted(pool.slots.admit([ticket.key]), ticket)
        slot = pool.slots.slot(ticket.key)
        self.traffic.settle(ticket, slot, pool.slots.generation(slot))
        return True

    def _unplace(self, ticket: Ticket) -> None:
        """A prediction of which nothing was read waits without a slot, so that exact keys can have it."""
        if not ticket.demanded and not ticket.issued:
            self.traffic.unsettle(ticket)
            self.pools[ticket.store].slots.discard(ticket.key)
            ticket.slot = -1

    def _complete(self, ticket: Ticket, ready_ns: int, now_ns: int) -> None:
        pool = self.pools[ticket.store]
        pool.slots.publish(ticket.key, ticket.slot_generation)
        self.traffic.unsettle(ticket)
        ticket.ready_ns, ticket.seen_ns, ticket.completion = ready_ns, now_ns, next(self._completions)
        ticket.move(TicketState.READY)
        del pool.tickets[ticket.key]
        if ticket.leases:
            ticket.move(TicketState.LEASED)
        else:
            pool.unused[ticket.key] = ticket

    def _give_up(self, ticket: Ticket) -> None:
        """Nobody holds a ticket that has not come: cancelled if no read is in flight, else stale."""
        self._empty(ticket)
        self.pools[ticket.store].close(ticket, TicketState.STALE if ticket.reads_in_flight else TicketState.CANCELLED)

    def _fail(self, ticket: Ticket, error: Exception) -> None:
        ticket.cause = error
        self._empty(ticket)
        for demand in ticket.demands:
            demand.error = error
            del demand.slots[ticket.key]
        self.pools[ticket.store].close(ticket, TicketState.FAILED)

    def _empty(self, ticket: Ticket) -> None:
        """Takes a ticket's slot and its waiting reads away."""
        self.traffic.withdraw(ticket)
        if ticket.slot >= 0:
            self.traffic.unsettle(ticket)
            self.pools[ticket.store].slots.discard(ticket.key)

    def _replace(self, hung: Ticket, now_ns: int) -> None:
        """A demanded key whose read hangs: a new ticket in a new slot takes over the demands, or they fail."""
        pool = self.pools[hung.store]
        attempts = hung.attempts + 1
        if attempts >= self.config.max_attempts or pool.slots.num_available < 1:
            self._fail(hung, TimeoutError(f"read of {hung.store} {hung.key} hangs, attempt {attempts}"))
            return
        self._give_up(hung)
        pool.counters.retries += 1
        pool.evicted(pool.slots.admit([hung.key]))
        ticket = self._plan(pool, hung.key, hung.event, now_ns, Intent.EXACT, Priority.P0)
        ticket.attempts = attempts
        for demand in hung.demands:
            demand.slots[hung.key] = pool.slots.lease(hung.key)
            self._lease(pool, ticket, demand)
        self.traffic.enqueue(pool, [ticket])


def _hold(pool: Pool, demand: Demand, keys: Sequence[int]) -> bool:
    """Leases the keys of an event: protects all that is present, only then admits the rest. False when that can't be had."""
    slots = pool.slots
    present, absent = slots.partition(keys)
    if len(absent) > slots.num_available - sum(not slots.leases(key) for key in present):
        return False
    slots.policy.start_event()
    for key in present:
        demand.slots[key] = slots.lease(key)
    slots.policy.touch(present)
    pool.evicted(slots.admit(absent))
    for key in absent:
        demand.slots[key] = slots.lease(key)
    return True
