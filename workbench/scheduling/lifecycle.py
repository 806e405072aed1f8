"""The state machine of tickets: planned, joined, given a slot, completed, replaced, cancelled."""

import itertools
from collections.abc import Sequence

from workbench.scheduling.pool import Pool
from workbench.scheduling.reads import Reads
from workbench.scheduling.ticket import Demand, Intent, Origin, PredictedKey, Priority, RequestStatus, Ticket, TicketState


class Lifecycle:
    """Every step of a ticket that changes pins, slots and reads together."""

    def __init__(self, reads: Reads, max_attempts: int) -> None:
        self._reads = reads
        self._pools = reads.pools
        self._max_attempts = max_attempts
        self._tickets = itertools.count()
        self._completions = itertools.count()

    # ---- planned, joined -------------------------------------------------------------------------

    def cover(self, pool: Pool, demand: Demand, keys: Sequence[int], now_ns: int) -> None:
        """Sorts the keys of a demand, which has slots for them, into hits, joined and misses, and pins their tickets."""
        misses, tickets, unused, resident, hits = [], pool.tickets, pool.unused, pool.slots.resident, demand.hits
        for key in keys:
            if key in resident and key not in unused:
                hits.append(key)
                continue
            ticket = tickets.get(key) or unused.pop(key, None)
            if ticket is None:
                demand.misses.append(key)
                ticket = self._plan(pool, key, demand.origin, demand.generation, now_ns, Intent.EXACT, Priority.P0)
                misses.append(ticket)
            elif ticket.state is TicketState.READY:
                hits.append(key)
                ticket.move(TicketState.PINNED)
            else:
                demand.joined.append(key)
                self._promote(pool, ticket, demand)
            self._pin(pool, ticket, demand)
        self._reads.enqueue(pool, misses)
        demand.status = RequestStatus.QUEUED if demand.joined or misses else RequestStatus.DONE
        pool.counters.count_demand(demand)

    def predict(
        self,
        pool: Pool,
        predicted: PredictedKey,
        origin: Origin,
        generation: int,
        now_ns: int,
        priority: Priority,
        predictor: str,
    ) -> Ticket | None:
        """The ticket of a predicted key, planned or joined; None when its class has no room."""
        ticket = pool.tickets.get(predicted.key)
        deadline_ns = min(origin.deadline_ns, predicted.deadline_ns)
        if ticket is None:
            if not self._reads.has_room(pool, predicted.key, priority):
                return None
            ticket = self._plan(pool, predicted.key, origin, generation, now_ns, Intent.PREDICTED, priority)
            ticket.confidence, ticket.token_mask = predicted.probability, predicted.token_mask
            ticket.deadline_ns, ticket.predictor = deadline_ns, predictor
            pool.counters.predicted += 1
            self._reads.enqueue(pool, [ticket])
        elif not ticket.demanded:
            self._hasten(ticket, priority, deadline_ns)
        if not ticket.demanded:
            ticket.predicting_requests.add(origin.request)
        return ticket

    def _plan(
        self,
        pool: Pool,
        key: int,
        origin: Origin,
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
            origin=origin,
            generation=generation,
            confidence=1.0,
            token_mask=origin.token_mask,
            deadline_ns=origin.deadline_ns,
            wanted=pool.all_bits,
            submit_ns=now_ns,
            demanded=intent is Intent.EXACT,
        )
        pool.tickets[key] = ticket
        return ticket

    def _hasten(self, ticket: Ticket, priority: Priority, deadline_ns: int) -> None:
        if priority < ticket.priority or deadline_ns < ticket.deadline_ns:
            ticket.deadline_ns = min(ticket.deadline_ns, deadline_ns)
            self._reads.reclass(ticket, min(ticket.priority, priority))

    def _promote(self, pool: Pool, ticket: Ticket, demand: Demand) -> None:
        """Makes a ticket that a demand joins as urgent as the demand, and exact if no read was issued for the ticket yet."""
        if not ticket.demanded:
            ticket.demanded = True
            ticket.predicting_requests.clear()
            ticket.intent = ticket.intent if ticket.issued else Intent.EXACT
            pool.counters.promoted += 1
        self._hasten(ticket, Priority.P0, demand.origin.deadline_ns)

    # ---- pins and slots --------------------------------------------------------------------------

    def _pin(self, pool: Pool, ticket: Ticket, demand: Demand) -> None:
        demand.tickets[ticket.key] = ticket
        ticket.demands.append(demand)
        ticket.num_pins += 1
        ticket.num_demands += 1
        if ticket.owner is None:
            ticket.owner = demand.origin.request
        if ticket.slot < 0:
            slot = demand.slots[ticket.key]
            self._reads.assign_slot(ticket, slot, pool.slots.generation(slot))

    def unpin(self, ticket: Ticket, demand: Demand) -> None:
        """Ends the pin of a demand on a ticket; the ticket ends with its last pin."""
        ticket.demands.remove(demand)
        ticket.num_pins -= 1
        if ticket.num_pins:
            return
        if ticket.state is TicketState.PINNED:
            self._pools[ticket.store].close(ticket, TicketState.RELEASED)
        else:
            del demand.slots[ticket.key]
            self.give_up(ticket)

    def admit_predicted(self, ticket: Ticket) -> bool:
        """Gives a slot to a predicted ticket whose read is about to be submitted; False while no slot is available."""
        pool = self._pools[ticket.store]
        if not pool.slots.num_available:
            return False
        # warming brings back what was used: to the policy it is what it was
        predicted = ticket.planned_priority is not Priority.P3
        pool.evicted(pool.slots.admit([ticket.key], predicted=predicted), ticket)
        if predicted:
            pool.slots.protect(ticket.key, ticket.origin.request, ticket.origin.point)
        slot = pool.slots.slot(ticket.key)
        self._reads.assign_slot(ticket, slot, pool.slots.generation(slot))
        return True

    def withdraw_slot(self, ticket: Ticket) -> None:
        """Frees the slot of a predicted ticket that was never submitted, so that an exact key can take it."""
        if not ticket.demanded and not ticket.issued:
            self._reads.end_filling(ticket)
            self._pools[ticket.store].slots.discard(ticket.key)
            ticket.slot = -1

    # ---- the end ---------------------------------------------------------------------------------

    def complete(self, ticket: Ticket, ready_ns: int, now_ns: int) -> None:
        """Publishes a ticket whose bytes are all in its slot."""
        pool = self._pools[ticket.store]
        pool.slots.publish(ticket.key, ticket.slot_generation)
        self._reads.end_filling(ticket)
        ticket.ready_ns, ticket.seen_ns, ticket.completion = ready_ns, now_ns, next(self._completions)
        ticket.move(TicketState.READY)
        del pool.tickets[ticket.key]
        if ticket.num_pins:
            ticket.move(TicketState.PINNED)
        else:
            pool.unused[ticket.key] = ticket

    def give_up(self, ticket: Ticket) -> None:
        """Ends an incomplete ticket without pins: cancelled if no read is in flight, else stale."""
        self._empty(ticket)
        self._pools[ticket.store].close(ticket, TicketState.STALE if ticket.reads_in_flight else TicketState.CANCELLED)

    def fail(self, ticket: Ticket, error: Exception) -> None:
        """Ends a ticket whose reads failed: the demands that pin the ticket carry the error."""
        ticket.cause = error
        self._empty(ticket)
        for demand in ticket.demands:
            demand.error = error
            del demand.slots[ticket.key]
        self._pools[ticket.store].close(ticket, TicketState.FAILED)

    def _empty(self, ticket: Ticket) -> None:
        """Frees the slot of a ticket and withdraws its waiting reads."""
        self._reads.withdraw(ticket)
        if ticket.slot >= 0:
            self._reads.end_filling(ticket)
            self._pools[ticket.store].slots.discard(ticket.key)

    def replace(self, hung: Ticket, now_ns: int) -> None:
        """Replaces a demanded ticket whose read hangs: a new ticket in a new slot takes over the demands, or they fail."""
        pool = self._pools[hung.store]
        attempts = hung.attempts + 1
        if attempts >= self._max_attempts or pool.slots.num_available < 1:
            self.fail(hung, TimeoutError(f"read of {hung.store} {hung.key} hangs, attempt {attempts}"))
            return
        self.give_up(hung)
        pool.counters.retries += 1
        pool.evicted(pool.slots.admit([hung.key]))
        ticket = self._plan(pool, hung.key, hung.origin, hung.generation, now_ns, Intent.EXACT, Priority.P0)
        ticket.attempts = attempts
        for demand in hung.demands:
            demand.slots[hung.key] = pool.slots.pin(hung.key)
            self._pin(pool, ticket, demand)
        self._reads.enqueue(pool, [ticket])
