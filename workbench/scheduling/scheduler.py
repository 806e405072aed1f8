"""The scheduler decides which key gets which slot and which read is next. Its caller moves bytes and reports completions.

demand = scheduler.demand("expert", keys, Origin(request=0, layer=3), now_ns)
orders = scheduler.issue(now_ns)                      # submit them, `hand_back` those that a busy reader refuses
while demand.missing(now_ns):                         # wait, then for each completion:
    scheduler.on_ready(number, ready_ns=..., now_ns=...)
...                                                   # compute on demand.slots
scheduler.release(demand)                             # after evaluation
"""

from collections.abc import Callable, Collection, Iterable, Sequence

from workbench.scheduling.lifecycle import Lifecycle
from workbench.scheduling.limits import InFlight, SchedulerConfig
from workbench.scheduling.pool import Pool
from workbench.scheduling.reads import ReadQueue, Reads
from workbench.scheduling.slots import Loan
from workbench.scheduling.ticket import (
    Demand,
    Order,
    Origin,
    PredictedKey,
    PrefetchResult,
    Priority,
    RequestStatus,
    Ticket,
    TicketState,
)


class Scheduler:
    """Pure state machine over one or more pools that share the reads and the disk. Times are the caller's nanoseconds."""

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
        self.reads = Reads(self.pools, InFlight(self.config.limits), ReadQueue(self.config.queue_bounds))
        self._lives = Lifecycle(self.reads, self.config.max_attempts)
        self._demands: dict[int, dict[Demand, None]] = {}
        self._generations: dict[int, int] = {}

    # ---- demands and predictions ------------------------------------------------------------------------------------

    def demand(self, store: str, keys: Sequence[int], origin: Origin, now_ns: int) -> Demand:
        """Demands exact keys: pins resident keys, joins reads in flight, gives the other keys slots and tickets (P0).

        All or nothing: answers `busy`, with nothing changed, while too many slots are pinned. Raises ValueError when the
        pool can never hold all keys: demand them in parts.
        """
        pool = self.pools[store]
        keys = list(dict.fromkeys(keys))
        if len(keys) > pool.slots.capacity:
            raise ValueError(f"a demand of {len(keys)} keys needs as many slots, pool {store} has {pool.slots.capacity}")
        demand = Demand(store=store, origin=origin, generation=self.generation(origin.request))
        if not _hold(pool, demand, keys):
            pool.counters.busy += len(keys)
            demand.status, demand.open = RequestStatus.BUSY, False
            return demand
        self._demands.setdefault(origin.request, {})[demand] = None
        if pool.slots.num_protected:
            pool.slots.unprotect(origin.request, origin.point)
        self._lives.cover(pool, demand, keys, now_ns)
        return demand

    def prefetch(
        self,
        store: str,
        keys: Sequence[PredictedKey],
        origin: Origin,
        now_ns: int,
        *,
        priority: Priority,
        predictor: str = "",
        generation: int | None = None,
    ) -> PrefetchResult:
        """Plans reads of predicted keys, best first. A key gets its slot when its read is issued.

        Resident keys are protected until the layer of `origin` is demanded, at most as many as the class may fill slots.
        A prediction made for an older `generation` of its request, or while slots are lent, is refused whole. Raises
        ValueError on P0.
        """
        if priority == Priority.P0:
            raise ValueError("P0 is for exact demands")
        pool, current = self.pools[store], self.generation(origin.request)
        if pool.slots.num_lent or (generation is not None and generation != current):
            return PrefetchResult(status=RequestStatus.BUSY, refused=tuple(each.key for each in keys))
        tickets: dict[int, Ticket] = {}
        protected: list[int] = []
        refused: list[int] = []
        num_before, most_protected = pool.counters.predicted, self.config.limits.budgets[priority].slots
        for each in _once(keys):
            if each.key not in pool.tickets and pool.slots.slot_of(each.key) is not None:
                if pool.slots.num_protected < most_protected:
                    pool.slots.protect(each.key, origin.request, origin.point)
                    protected.append(each.key)
                else:
                    refused.append(each.key)
            elif (ticket := self._lives.predict(pool, each, origin, current, now_ns, priority, predictor)) is not None:
                tickets[each.key] = ticket
            else:
                refused.append(each.key)
        pool.counters.busy += len(refused)
        pool.counters.protected += len(protected)
        return PrefetchResult(
            status=RequestStatus.BUSY if refused else RequestStatus.QUEUED if tickets else RequestStatus.DONE,
            tickets=tuple(tickets.values()),
            num_planned=pool.counters.predicted - num_before,
            protected=tuple(protected),
            refused=tuple(refused),
        )

    def generation(self, request: int) -> int:
        """Epoch of a request; `cancel` ends it and begins the next."""
        return self._generations.get(request, 0)

    # ---- reads ------------------------------------------------------------------------------------------------------

    def issue(self, now_ns: int, limit: int | None = None) -> list[Order]:
        """Reads to submit now, most urgent first. Predictions whose deadline has passed are withdrawn instead."""
        orders: list[Order] = []
        while (limit is None or len(orders) < limit) and (order := self.reads.head()) is not None:
            ticket = order.ticket
            if _is_too_late(ticket, now_ns):
                self._lives.give_up(ticket)
            elif ticket.slot < 0 and not self._lives.admit_predicted(ticket):
                break
            else:
                self.reads.begin_read(order, now_ns)
                orders.append(order)
        return orders

    def hand_back(self, orders: Iterable[Order]) -> None:
        """Queues the orders again that a busy reader did not take."""
        for order in orders:
            _, wanted = self.reads.complete(order.number)
            order.ticket.physical_bytes -= order.num_bytes
            self.pools[order.ticket.store].counters.read_ops -= 1
            if wanted:
                self.reads.requeue(order)
                self._lives.withdraw_slot(order.ticket)

    def on_ready(self, number: int, *, ready_ns: int, now_ns: int) -> Ticket:
        """Publishes the bytes of order `number`, which are in its slot and checked. A stale generation publishes nothing."""
        order, wanted = self.reads.complete(number)
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
        """Retries order `number`, whose read failed, a bounded number of times when its ticket is demanded; else drops it.

        After the last attempt the demands that pin the ticket carry the error; no other ticket is touched.
        """
        order, wanted = self.reads.complete(number)
        ticket = order.ticket
        if wanted:
            ticket.attempts += 1
            if ticket.demanded and ticket.attempts < self.config.max_attempts:
                self.pools[ticket.store].counters.retries += 1
                self.reads.requeue(order)
            else:
                self._lives.fail(ticket, error)
        return ticket

    def expire(self, now_ns: int, hang_ns: int) -> list[Ticket]:
        """Gives up reads in flight for `hang_ns` or longer; a demanded key is read anew into another slot.

        The slot of a read that hangs stays out of use until the read ends. Returns the tickets given up.
        """
        hung = [o.ticket for o in self.reads.submitted if now_ns - o.issue_ns >= hang_ns and not o.ticket.final]
        hung = list(dict.fromkeys(hung))
        for ticket in hung:
            if ticket.demanded:
                self._lives.replace(ticket, now_ns)
            else:
                self._lives.give_up(ticket)
        return hung

    # ---- ends -------------------------------------------------------------------------------------------------------

    def release(self, demand: Demand, *, drop: Collection[int] = ()) -> bool:
        """Ends the pins of a demand, after evaluation. False, and nothing happens, when they had ended already.

        Keys of the demand in `drop` leave their slots, unless another demand pins them.
        """
        if not demand.open:
            return False
        demand.open = False
        mine = self._demands[demand.origin.request]
        del mine[demand]
        if not mine:
            del self._demands[demand.origin.request]
        for ticket in demand.tickets.values():
            if not ticket.final:
                self._lives.unpin(ticket, demand)
        pool = self.pools[demand.store]
        pool.slots.unpin_all(demand.slots)
        for key in drop:
            if key in demand.slots:
                pool.drop(key)
        return True

    def drop(self, store: str, keys: Iterable[int]) -> None:
        """Removes resident keys from their slots, unless a demand pins them."""
        for key in keys:
            self.pools[store].drop(key)

    def cancel(self, request: int) -> int:
        """Ends the generation of a request: gives up its demands and predictions, once. Returns the number of demands ended.

        Waiting reads are withdrawn, reads in flight become stale; a ticket that another request pins too is kept.
        """
        self._generations[request] = self.generation(request) + 1
        demands = list(self._demands.get(request, ()))
        for demand in demands:
            self.release(demand)
        for pool in self.pools.values():
            pool.slots.unprotect(request)
            for ticket in [ticket for ticket in pool.tickets.values() if request in ticket.predicting_requests]:
                ticket.predicting_requests.discard(request)
                if not ticket.predicting_requests:
                    self._lives.give_up(ticket)
        return len(demands)

    def reject(self, request: int, position: int) -> list[Ticket]:
        """Demotes to P3 the predictions that only rejected tokens of `request`, from `position` on, would need.

        Returns the demoted tickets; reads in flight complete as they are.
        """
        demoted = [
            ticket
            for pool in self.pools.values()
            for ticket in pool.tickets.values()
            if ticket.predicting_requests == {request} and not ticket.issued and _first_position(ticket) >= position
        ]
        for ticket in demoted:
            self.reads.reclass(ticket, Priority.P3)
        return demoted

    def cancel_ticket(self, ticket: Ticket) -> bool:
        """Gives up a predicted ticket for all its requests; False when the ticket is demanded, complete or final."""
        if ticket.demanded or ticket.state not in (TicketState.QUEUED, TicketState.IN_FLIGHT):
            return False
        self._lives.give_up(ticket)
        return True

    def lend(self, store: str, count: int) -> Loan | None:
        """Reserves the last `count` slots as one piece of memory; None while pinned or draining slots prevent it.

        The policy chooses the keys to evict; the caller copies the records that the loan moves before it writes there.
        Incomplete predictions are given up, and none is planned until `take_back`.
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
        """Returns lent slots, empty, to the pool; the borrower no longer reads into them."""
        self.pools[store].slots.take_back()

    def finish(self, request: int) -> None:
        """Removes the epoch of a request that has ended. Raises ValueError while the request has open demands."""
        if request in self._demands:
            raise ValueError(f"request {request} still holds {len(self._demands[request])} demands")
        self._generations.pop(request, None)

    def close(self) -> None:
        """Ends predicted tickets, which no demand used. Raises ValueError while demands are open."""
        if self._demands:
            raise ValueError(f"requests {sorted(self._demands)} still hold demands")
        for pool in self.pools.values():
            for ticket in list(pool.tickets.values()):
                self._lives.give_up(ticket)
            for ticket in pool.unused.values():
                pool.close(ticket, TicketState.RELEASED)
            pool.unused.clear()


def _once(keys: Sequence[PredictedKey]) -> Iterable[PredictedKey]:
    """Each key once, as first predicted."""
    first: dict[int, PredictedKey] = {}
    for each in keys:
        first.setdefault(each.key, each)
    return first.values()


def _is_too_late(ticket: Ticket, now_ns: int) -> bool:
    """Whether compute was expected to ask before now for a predicted ticket of which no read was issued."""
    return not ticket.demanded and not ticket.issued and ticket.deadline_ns < now_ns


def _first_position(ticket: Ticket) -> int:
    """Position of the first token that a ticket was predicted for."""
    return ticket.origin.position + (ticket.token_mask & -ticket.token_mask).bit_length() - 1


def _hold(pool: Pool, demand: Demand, keys: Sequence[int]) -> bool:
    """Pins all present keys, only then admits the absent ones. False, and nothing changes, when slots are too few."""
    slots = pool.slots
    present, absent = slots.partition(keys)
    room = slots.num_available - len(absent)
    # where even as many more keys would find room, no pin needs to be counted
    if room < len(present) and room < sum(not slots.num_pins(key) for key in present):
        return False
    slots.policy.start_event()
    slots.pin_all(present, demand.slots)
    slots.touch(present)
    pool.evicted(slots.admit(absent))
    slots.pin_all(absent, demand.slots)
    return True
