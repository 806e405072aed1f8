"""A ticket's life between the calls of the scheduler: planned, joined, placed, completed, replaced, given up."""

import itertools
from collections.abc import Sequence

from workbench.scheduling.demand import Answer, Demand, PredictedKey
from workbench.scheduling.pool import Pool
from workbench.scheduling.ticket import Event, Intent, Priority, Ticket, TicketState
from workbench.scheduling.traffic import Traffic


class Lifecycle:
    """Every step of a ticket that changes leases, slots and reads together."""

    def __init__(self, traffic: Traffic, max_attempts: int) -> None:
        self._traffic = traffic
        self._pools = traffic.pools
        self._max_attempts = max_attempts
        self._tickets = itertools.count()
        self._completions = itertools.count()

    # ---- asked for ------------------------------------------------------------------------------------------------

    def cover(self, pool: Pool, demand: Demand, keys: Sequence[int], now_ns: int) -> None:
        """Sorts the keys of a held demand into hits, joined and misses, and leases their tickets."""
        misses, tickets, unused, resident, hits = [], pool.tickets, pool.unused, pool.slots.resident, demand.hits
        for key in keys:
            if key in resident and key not in unused:
                hits.append(key)
                continue
            ticket = tickets.get(key) or unused.pop(key, None)
            if ticket is None:
                demand.misses.append(key)
                ticket = self._plan(pool, key, demand.event, demand.generation, now_ns, Intent.EXACT, Priority.P0)
                misses.append(ticket)
            elif ticket.state is TicketState.READY:
                hits.append(key)
                ticket.move(TicketState.LEASED)
            else:
                demand.joined.append(key)
                self._promote(pool, ticket, demand)
            self._lease(pool, ticket, demand)
        self._traffic.enqueue(pool, misses)
        demand.answer = Answer.QUEUED if demand.joined or misses else Answer.DONE
        pool.counters.count_demand(demand)

    def predict(
        self, pool: Pool, predicted: PredictedKey, event: Event, generation: int, now_ns: int, priority: Priority, predictor: str
    ) -> Ticket | None:
        """The ticket of a predicted key, planned or joined; None when its class has no room."""
        ticket = pool.tickets.get(predicted.key)
        deadline_ns = min(event.deadline_ns, predicted.deadline_ns)
        if ticket is None:
            if not self._traffic.has_room(pool, predicted.key, priority):
                return None
            ticket = self._plan(pool, predicted.key, event, generation, now_ns, Intent.PREDICTED, priority)
            ticket.confidence, ticket.token_mask = predicted.probability, predicted.token_mask
            ticket.deadline_ns, ticket.predictor = deadline_ns, predictor
            pool.counters.predicted += 1
            self._traffic.enqueue(pool, [ticket])
        elif not ticket.demanded:
            self._hasten(ticket, priority, deadline_ns)
        if not ticket.demanded:
            ticket.predictors.add(event.request)
        return ticket

    def _plan(
        self,
        pool: Pool,
        key: int,
        event: Event,
        generation: int,
        now_ns: int,
        intent: Intent,
        priority: Priority,
    ) -> Ticket:
        ticket = Ticket(
            number=next(self._tickets),
            store=pool.name,
            digest=pool.digest,
            key=key,
            intent=intent,
            planned_priority=priority,
            priority=priority,
            event=event,
            generation=generation,
            confidence=1.0,
            token_mask=event.token_mask,
            deadline_ns=event.deadline_ns,
            wanted=pool.all_bits,
            submit_ns=now_ns,
            demanded=intent is Intent.EXACT,
        )
        pool.tickets[key] = ticket
        return ticket

    def _hasten(self, ticket: Ticket, priority: Priority, deadline_ns: int) -> None:
        if priority < ticket.priority or deadline_ns < ticket.deadline_ns:
            ticket.deadline_ns = min(ticket.deadline_ns, deadline_ns)
            self._traffic.reclass(ticket, min(ticket.priority, priority))

    def _promote(self, pool: Pool, ticket: Ticket, demand: Demand) -> None:
        """An exact demand joins: the ticket becomes as urgent as the demand, and exact if no read was issued for it yet."""
        if not ticket.demanded:
            ticket.demanded = True
            ticket.predictors.clear()
            ticket.intent = ticket.intent if ticket.issued else Intent.EXACT
            pool.counters.promoted += 1
        self._hasten(ticket, Priority.P0, demand.event.deadline_ns)

    # ---- leases and slots -----------------------------------------------------------------------------------------

    def _lease(self, pool: Pool, ticket: Ticket, demand: Demand) -> None:
        demand.tickets[ticket.key] = ticket
        ticket.demands.append(demand)
        ticket.leases += 1
        ticket.num_demands += 1
        if ticket.owner is None:
            ticket.owner = demand.event.request
        if ticket.slot < 0:
            slot = demand.slots[ticket.key]
            self._traffic.settle(ticket, slot, pool.slots.generation(slot))

    def unlease(self, ticket: Ticket, demand: Demand) -> None:
        """A demand lets go of a ticket, which ends when it was the last that held it."""
        ticket.demands.remove(demand)
        ticket.leases -= 1
        if ticket.leases:
            return
        if ticket.state is TicketState.LEASED:
            self._pools[ticket.store].close(ticket, TicketState.RELEASED)
        else:
            del demand.slots[ticket.key]
            self.give_up(ticket)

    def place(self, ticket: Ticket) -> bool:
        """A slot for a prediction that is about to be read; False while none is to be had."""
        pool = self._pools[ticket.store]
        if not pool.slots.num_available:
            return False
        # warming brings back what was used: to the policy it is what it was
        predicted = ticket.planned_priority is not Priority.P3
        pool.evicted(pool.slots.admit([ticket.key], predicted=predicted), ticket)
        if predicted:
            pool.slots.protect(ticket.key, ticket.event.request, ticket.event.place)
        slot = pool.slots.slot(ticket.key)
        self._traffic.settle(ticket, slot, pool.slots.generation(slot))
        return True

    def unplace(self, ticket: Ticket) -> None:
        """A prediction of which nothing was read waits without a slot, so that exact keys can have it."""
        if not ticket.demanded and not ticket.issued:
            self._traffic.unsettle(ticket)
            self._pools[ticket.store].slots.discard(ticket.key)
            ticket.slot = -1

    # ---- the end --------------------------------------------------------------------------------------------------

    def complete(self, ticket: Ticket, ready_ns: int, now_ns: int) -> None:
        """All bytes of a ticket are there: it is published."""
        pool = self._pools[ticket.store]
        pool.slots.publish(ticket.key, ticket.slot_generation)
        self._traffic.unsettle(ticket)
        ticket.ready_ns, ticket.seen_ns, ticket.completion = ready_ns, now_ns, next(self._completions)
        ticket.move(TicketState.READY)
        del pool.tickets[ticket.key]
        if ticket.leases:
            ticket.move(TicketState.LEASED)
        else:
            pool.unused[ticket.key] = ticket

    def give_up(self, ticket: Ticket) -> None:
        """Nobody holds a ticket that has not come: cancelled if no read is in flight, else stale."""
        self._empty(ticket)
        self._pools[ticket.store].close(ticket, TicketState.STALE if ticket.reads_in_flight else TicketState.CANCELLED)

    def fail(self, ticket: Ticket, error: Exception) -> None:
        """A ticket can't be had: the demands that hold it carry the error."""
        ticket.cause = error
        self._empty(ticket)
        for demand in ticket.demands:
            demand.error = error
            del demand.slots[ticket.key]
        self._pools[ticket.store].close(ticket, TicketState.FAILED)

    def _empty(self, ticket: Ticket) -> None:
        """Takes a ticket's slot and its waiting reads away."""
        self._traffic.withdraw(ticket)
        if ticket.slot >= 0:
            self._traffic.unsettle(ticket)
            self._pools[ticket.store].slots.discard(ticket.key)

    def replace(self, hung: Ticket, now_ns: int) -> None:
        """A demanded key whose read hangs: a new ticket in a new slot takes over the demands, or they fail."""
        pool = self._pools[hung.store]
        attempts = hung.attempts + 1
        if attempts >= self._max_attempts or pool.slots.num_available < 1:
            self.fail(hung, TimeoutError(f"read of {hung.store} {hung.key} hangs, attempt {attempts}"))
            return
        self.give_up(hung)
        pool.counters.retries += 1
        pool.evicted(pool.slots.admit([hung.key]))
        ticket = self._plan(pool, hung.key, hung.event, hung.generation, now_ns, Intent.EXACT, Priority.P0)
        ticket.attempts = attempts
        for demand in hung.demands:
            demand.slots[hung.key] = pool.slots.lease(hung.key)
            self._lease(pool, ticket, demand)
        self._traffic.enqueue(pool, [ticket])
