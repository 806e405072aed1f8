"""The ticket rules of a scheduler, checked against a plain model after every step, whatever happens in whatever order.

The model keeps what a disk and a memory would: which reads are at the reader, and what each byte of each slot holds. A read
spoils its part of the slot when it starts and fills it when it ends well, also when nobody wants it any more.
"""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

KEYS = {"expert": 9, "ple": 6}
SLOTS = {"expert": 6, "ple": 4}
PARTS = {"expert": (3, 4), "ple": (1,)}
BITS = {"expert": (1, 2, 4), "ple": (1,)}
DEPTH = {"expert": 5, "ple": 2}
BYTES = {3: 20, 4: 10, 1: 8}
NUM_REQUESTS = 3
HANG_NS = 1000
MAX_ATTEMPTS = 3
BOUND = 4

stores = st.sampled_from(["expert", "ple"])
requests = st.integers(0, NUM_REQUESTS - 1)
key_lists = st.lists(st.integers(0, 8), min_size=1, max_size=6)
picks = st.integers(0, 1 << 16)


class Permitted:
    """The scheduler as the machine calls it: every call of the machine is permitted, so none may raise."""

    def __init__(self, scheduler):
        self._scheduler = scheduler

    def __getattr__(self, name):
        found = getattr(self._scheduler, name)
        return self._checked(found) if callable(found) else found

    @staticmethod
    def _checked(method):
        def call(*values, **settings):
            try:
                return method(*values, **settings)
            except (ValueError, KeyError) as error:
                raise AssertionError(f"a permitted call raises: {error!r}") from error

        return call


class Lru:
    """The plainest policy."""

    def __init__(self):
        self.keys = {}

    def start_event(self):
        pass

    def touch(self, keys):
        for key in keys:
            self.keys[key] = self.keys.pop(key)

    def admit(self, keys):
        self.keys.update(dict.fromkeys(keys))

    def evict(self, count, protected):
        victims = [key for key in self.keys if key not in protected][:count]
        for key in victims:
            del self.keys[key]
        return victims

    def forget(self, key):
        del self.keys[key]


def build_scheduler(s, on_final, **settings):
    """A small scheduler of the package `s`, with two pools."""
    pools = [
        s.Pool(
            name=name,
            digest="0" * 64,
            slots=s.SlotTable(SLOTS[name], Lru()),
            sizes=lambda key, bits: (BYTES[bits] - 1, BYTES[bits]),
            parts=PARTS[name],
        )
        for name in SLOTS
    ]
    budgets = {
        # each class runs into another of its bounds first
        s.Priority.P1: s.Budget(num_bytes=55, slots=9, reads=9),
        s.Priority.P2: s.Budget(num_bytes=200, slots=9, reads=2),
        s.Priority.P3: s.Budget(num_bytes=200, slots=1, reads=9),
    }
    config = s.SchedulerConfig(
        limits=s.ReadLimits(depth=DEPTH, budgets=budgets),
        queue_bounds={s.Priority.P1: BOUND, s.Priority.P2: BOUND, s.Priority.P3: BOUND},
        max_attempts=MAX_ATTEMPTS,
        **settings,
    )
    return s.Scheduler(pools, config, on_final=on_final)


def build_machine(s):
    """The state machine for the package `s`, the real one or a copy with a fault."""

    class Tickets(RuleBasedStateMachine):
        def __init__(self):
            super().__init__()
            self.now = 0
            self.finals = []
            self.scheduler = Permitted(build_scheduler(s, self.finals.append))
            self.flying = {}
            self.memory = {name: [dict.fromkeys(BITS[name]) for _ in range(SLOTS[name])] for name in SLOTS}
            self.arrived = {}
            self.demands = []
            self.failed = {}
            self.seen = {}

        # ---- what can happen ---------------------------------------------------------------------------------------

        @initialize(keys=key_lists)
        def warm(self, keys):
            self.prefetch("expert", keys, 0, 1, 1000, 0)

        @rule(store=stores, keys=key_lists, request=requests, lead=st.integers(0, 100), met=st.booleans())
        def demand(self, store, keys, request, lead, met):
            self.ask(store, keys, request, lead)
            if met:
                self.complete_all(lead)

        def ask(self, store, keys, request, lead):
            while len(self.demands) > 2:
                self.release(0)
            pool = self.scheduler.pools[store]
            keys = list(dict.fromkeys(key % KEYS[store] for key in keys))[: pool.slots.capacity]
            before, resident = self.snapshot(), set(pool.slots.resident_keys)
            known = dict(pool.tickets)
            kept = set(pool.slots._protected) | {key for key in range(9) if pool.slots.num_pins(key)} | set(keys)
            origin = s.Origin(request=request, deadline_ns=self.now + lead, position=lead % 3)
            demand = self.scheduler.demand(store, keys, origin, self.now)
            left = resident - set(pool.slots.resident_keys)
            assert not left & kept or resident - kept <= left, "what is predicted stays while something else can leave"
            if demand.status == "busy":
                assert self.snapshot() == before, "a busy demand changes nothing"
                assert self.num_free_for(store, keys, resident) < len([key for key in keys if key not in before[store]]), (
                    "a demand is busy only where slots are too few"
                )
                return
            assert set(demand.hits) == set(keys) & resident, "hits are what was resident"
            assert set(demand.hits) <= pool.slots.resident_keys, "hits are protected before anything is admitted"
            assert set(demand.joined) == {key for key in keys if key in known}, "one ticket an identity"
            assert set(demand.hits) | set(demand.joined) | set(demand.misses) == set(keys) == set(demand.slots), (
                "every key of a demand has a slot and one place"
            )
            for key in (*demand.joined, *demand.misses):
                ticket = demand.tickets[key]
                assert ticket is known.get(key, ticket), "a second demand joins"
                assert ticket.priority == s.Priority.P0, "an exact demand raises the priority"
                assert ticket.deadline_ns <= self.now + lead, "and the deadline"
            self.demands.append(demand)

        @rule(store=stores, keys=key_lists, request=requests, priority=st.integers(1, 3), lead=picks, old=st.integers(0, 1))
        def prefetch(self, store, keys, request, priority, lead, old):
            keys = [key % KEYS[store] for key in keys]
            deadline_ns = self.now + lead % 200
            generation = self.scheduler.generation(request) - old
            before, waited = self.snapshot(), len(self.waiting(s.Priority(priority)))
            lent = self.scheduler.pools[store].slots.num_lent
            prediction = self.scheduler.prefetch(
                store,
                [s.PredictedKey(key) for key in keys],
                s.Origin(request=request, deadline_ns=deadline_ns, position=lead % 3),
                self.now,
                priority=s.Priority(priority),
                generation=generation,
            )
            if old or lent:
                assert self.snapshot() == before, "a prediction of a dead generation, or while slots are lent, plans nothing"
                assert prediction.status == "busy", "a refused prediction is busy"
                return
            for ticket in prediction.tickets:
                urgent = ticket.priority <= priority and ticket.deadline_ns <= deadline_ns
                assert ticket.demanded or urgent, "a second prediction raises the priority"
            planned = [ticket for ticket in prediction.tickets if ticket not in before[store, "tickets"]]
            assert not planned or waited < BOUND, "a full queue answers busy"
            assert not set(prediction.refused) & {ticket.key for ticket in prediction.tickets}, "a refused key has no ticket"
            assert all(self.scheduler.pools[store].tickets.get(key) is None for key in prediction.refused), (
                "a refused key has no ticket"
            )

        @rule(taken=st.integers(0, 2), step=st.integers(0, 60))
        def issue(self, taken, step):
            self.now += step
            orders = self.scheduler.issue(self.now)
            assert [order.priority for order in orders] == sorted(order.priority for order in orders), (
                "the most urgent read is first"
            )
            for order in orders:
                self.check_order(order)
                self.flying[order.number] = order
            self.check_limits()
            self.check_precedence(orders)
            for order in orders[taken:]:
                del self.flying[order.number]
            self.scheduler.hand_back(orders[taken:])

        @rule(pick=picks)
        def complete_all(self, pick):
            """In an order that depends on `pick`, as long as anything can go."""
            self.issue(99, 0)
            while self.flying:
                self.complete(pick)
                self.issue(99, 0)

        @rule(pick=picks, count=st.integers(1, 4))
        def complete_some(self, pick, count):
            self.issue(99, 0)
            for _ in range(min(count, len(self.flying))):
                self.complete(pick)
            for number in range(len(self.demands)):
                self.wait(number, 3)

        def complete(self, pick):
            order = self.take(pick)
            ticket = order.ticket
            wanted = not ticket.final
            resident = set(self.scheduler.pools[ticket.store].slots.resident_keys)
            for bit in BITS[ticket.store]:
                if order.bits & bit:
                    self.memory[ticket.store][order.slot][bit] = ticket.key
            if wanted:
                self.arrived[ticket] = self.arrived.get(ticket, 0) | order.bits
            self.scheduler.on_ready(order.number, ready_ns=self.now, now_ns=self.now)
            gained = set(self.scheduler.pools[ticket.store].slots.resident_keys) - resident
            complete = wanted and self.arrived[ticket] == sum(BITS[ticket.store])
            assert gained == ({ticket.key} if complete else set()), "what is whole and wanted is published, nothing else"

        @rule(pick=picks, rounds=st.integers(1, 3))
        def fail_some(self, pick, rounds):
            """A disk that is down for a while."""
            for _ in range(rounds):
                self.issue(99, 0)
                for _ in range(len(self.flying) - pick % 2):
                    self.fail(pick)

        def fail(self, pick):
            order = self.take(pick)
            ticket = order.ticket
            wanted, demanded, holders = not ticket.final, ticket.demanded, list(ticket.demands)
            tries = self.failed[ticket] = self.failed.get(ticket, ticket.attempts) + wanted
            error = OSError(5, "planted")
            self.scheduler.on_error(order.number, error)
            if not wanted:
                return
            gives_up = not demanded or tries >= MAX_ATTEMPTS
            assert (ticket.state == s.TicketState.FAILED) == gives_up, "retried a bounded number of times, if demanded"
            if gives_up:
                assert self.scheduler.pools[ticket.store].slots.slot_of(ticket.key) is None, "a failed key has no slot"
                assert all(demand.error is error for demand in holders), "the demands of a failed ticket carry its error"
            for demand in self.demands:
                failed = any(t.state == s.TicketState.FAILED for t in demand.tickets.values())
                assert demand.error is None or failed, "a failure is its requests' alone"

        @rule(pick=picks, drop=st.booleans())
        def release(self, pick, drop=False):
            if not self.demands:
                return
            demand = self.demands.pop(pick % len(self.demands))
            slots = self.scheduler.pools[demand.store].slots
            keys = list(demand.slots)[: 1 + pick % 3] if drop else []
            held = {key for key in keys if any(d.store == demand.store and key in d.slots for d in self.demands)}
            assert self.scheduler.release(demand, drop=keys), "an open demand can be released"
            assert {key for key in keys if slots.slot_of(key) is not None} == held, "what is dropped leaves, unless it is held"
            before = self.snapshot()
            assert not self.scheduler.release(demand, drop=keys), "released exactly once"
            assert self.snapshot() == before, "a second release changes nothing"

        @rule(store=stores, count=st.integers(1, 3))
        def lend(self, store, count):
            """Memory in one piece for somebody else, and back."""
            pool = self.scheduler.pools[store]
            if pool.slots.num_lent:
                self.scheduler.take_back(store)
                return
            first = pool.slots.num_slots - count
            pinned = {key: pool.slots.slot_of(key) for key in range(9) if pool.slots.num_pins(key)}
            before = set(pool.slots.resident_keys)
            loan = self.scheduler.lend(store, count)
            assert not [ticket for ticket in pool.tickets.values() if not ticket.demanded], "a loan ends predictions"
            if loan is None:
                assert set(pool.slots.resident_keys) == before, "a loan that can't be had evicts nothing"
                return
            assert list(loan.slots) == list(range(first, first + count)), "the last slots are lent"
            memory = self.memory[store]
            for old, new in loan.moves.values():
                memory[new] = dict(memory[old])
            for slot in loan.slots:
                memory[slot] = dict.fromkeys(BITS[store])
            assert before - set(pool.slots.resident_keys) == set(loan.evicted), "a loan tells what it evicted"
            assert all(pool.slots.slot_of(key) == slot < first for key, slot in pinned.items() if pool.slots.num_pins(key)), (
                "a pinned slot is not lent"
            )
            assert not [order for order in self.flying.values() if order.ticket.store == store and order.slot >= first], (
                "a slot that drains is not lent"
            )

        @rule(
            kind=st.sampled_from(["cancel", "cancel_ticket", "expire", "hang", "reject"]),
            request=requests,
            store=stores,
            pick=picks,
        )
        def trouble(self, kind, request, store, pick):
            match kind:
                case "cancel":
                    self.cancel(request)
                case "cancel_ticket":
                    self.cancel_ticket(store, pick)
                case "expire":
                    self.expire(0)
                case "reject":
                    self.reject(request, pick % 3)
                case "hang":
                    self.issue(99, 0)
                    self.expire(HANG_NS)

        def cancel(self, request):
            mine = [demand for demand in self.demands if demand.origin.request == request]
            generation = self.scheduler.generation(request)
            assert self.scheduler.cancel(request) == len(mine), "a cancel ends each demand of its request"
            self.demands = [demand for demand in self.demands if demand.origin.request != request]
            before = self.snapshot()
            assert self.scheduler.cancel(request) == 0, "cancelled exactly once"
            assert self.snapshot() == before, "a second cancel changes nothing"
            assert self.scheduler.generation(request) == generation + 2, "a cancel ends the generation"
            for pool in self.scheduler.pools.values():
                assert not [t for t in pool.tickets.values() if not t.demanded and request in t.predicting_requests], (
                    "a cancelled request predicts nothing"
                )

        def cancel_ticket(self, store, pick):
            tickets = list(self.scheduler.pools[store].tickets.values())
            if tickets:
                ticket = tickets[pick % len(tickets)]
                assert self.scheduler.cancel_ticket(ticket) != ticket.demanded, "what is demanded is not given up"
                assert ticket.final != ticket.demanded, "a ticket that is given up is final"

        def reject(self, request, position):
            before = {t: t.priority for pool in self.scheduler.pools.values() for t in pool.tickets.values()}
            demoted = self.scheduler.reject(request, position)
            for ticket, priority in before.items():
                rejected = ticket.predicting_requests == {request} and ticket.origin.position >= position and not ticket.issued
                assert rejected == (ticket in demoted), "exactly the rejected predictions are demoted"
                assert ticket.priority == (s.Priority.P3 if rejected else priority), "a rejected suffix waits behind all else"

        def expire(self, late_ns):
            self.now += late_ns
            hung = self.scheduler.expire(self.now, HANG_NS)
            for order in self.flying.values():
                if self.now - order.issue_ns >= HANG_NS:
                    assert order.ticket.final, "a read that hangs is given up"
            assert all(ticket.final for ticket in hung), "what hangs is final"

        @rule(pick=picks, components=st.sampled_from([-1, 3, 4]))
        def wait(self, pick, components):
            if not self.demands:
                return
            demand = self.demands[pick % len(self.demands)]
            if demand.error is not None:
                return
            keys = [key for i, key in enumerate(demand.slots) if not pick >> i + 2 & 1]
            expected = [
                demand.tickets[key]
                for key in keys
                if key in demand.tickets and components & sum(BITS[demand.store]) & ~self.arrived.get(demand.tickets[key], 0)
            ]
            assert demand.missing(self.now, keys, components) == expected, "the smallest set that guards what is asked"

        # ---- what must hold ----------------------------------------------------------------------------------------

        @invariant()
        def every_slot_is_accounted_for(self):
            for pool in self.scheduler.pools.values():
                held = sum(pool.slots.slot_of(key) is not None for key in range(9))
                assert pool.slots.num_free + pool.slots.num_draining + held == pool.slots.capacity, "every slot is accounted for"
                assert pool.slots.capacity + pool.slots.num_lent == pool.slots.num_slots, "every slot is in use or lent"

        @invariant()
        def pins_are_those_of_open_demands_and_reads(self):
            for name, pool in self.scheduler.pools.items():
                for key in range(9):
                    holders = sum(d.store == name and key in d.slots for d in self.demands)
                    filling = key in pool.tickets and pool.tickets[key].slot >= 0
                    assert pool.slots.num_pins(key) == holders + filling, "pins are those of open demands and reads"

        @invariant()
        def pinned_bytes_are_untouched(self):
            for demand in self.demands:
                for key, slot in demand.slots.items():
                    assert self.scheduler.pools[demand.store].slots.slot_of(key) == slot, "a pinned key left its slot"
                    ticket = demand.tickets.get(key)
                    for bit in BITS[demand.store]:
                        if ticket is None or self.arrived.get(ticket, 0) & bit:
                            assert self.memory[demand.store][slot][bit] == key, "a pinned slot was overwritten"

        @invariant()
        def resident_bytes_are_whole(self):
            for name, pool in self.scheduler.pools.items():
                for key in pool.slots.resident_keys:
                    assert set(self.memory[name][pool.slots.slot(key)].values()) == {key}, "resident bytes are whole"

        @invariant()
        def tickets_end_once(self):
            assert len(self.finals) == len(set(self.finals)), "a ticket ended twice"
            assert all(ticket.final for ticket in self.finals), "only final tickets are told"
            for pool in self.scheduler.pools.values():
                live = [*pool.tickets.values(), *pool.unused.values()]
                assert not any(ticket.final for ticket in live), "a final ticket is gone"
                self.seen.update(dict.fromkeys(live))
            ended = {ticket for ticket in self.seen if ticket.final}
            assert ended <= set(self.finals), "every end is told"

        @invariant()
        def predictions_are_no_use(self):
            for pool in self.scheduler.pools.values():
                for ticket in [*pool.tickets.values(), *pool.unused.values()]:
                    if ticket.slot >= 0 and not ticket.demanded and ticket.planned_priority != s.Priority.P3:
                        assert ticket.key not in pool.slots.policy.keys, "the policy knows what somebody has used"

        @invariant()
        def predictions_that_wait_hold_no_slot(self):
            for pool in self.scheduler.pools.values():
                for ticket in pool.tickets.values():
                    assert ticket.demanded or ticket.issued or ticket.slot < 0, "a prediction that waits holds no slot"

        def teardown(self):
            for request in range(NUM_REQUESTS):
                self.scheduler.cancel(request)
            for store, pool in self.scheduler.pools.items():
                if pool.slots.num_lent:
                    self.scheduler.take_back(store)
            while self.flying:
                order = self.take(0)
                self.scheduler.on_ready(order.number, ready_ns=self.now, now_ns=self.now)
            self.scheduler.close()
            self.demands = []
            self.tickets_end_once()
            for request in range(NUM_REQUESTS):
                self.scheduler.finish(request)
            assert all(ticket.final for ticket in self.seen), "every ticket ends"
            reads = self.scheduler.reads
            assert (reads.num_in_flight, len(reads.queue)) == (0, 0), "no read is left"
            assert [reads.in_flight.use(priority) for priority in s.Priority] == [(0, 0, 0)] * 4, "no budget is left in use"
            for pool in self.scheduler.pools.values():
                assert pool.slots.num_free + len(pool.slots.resident_keys) == pool.slots.num_slots, (
                    "every slot is free or resident in the end"
                )
                assert pool.slots.num_available == pool.slots.num_slots, "every slot is available in the end"
                counters = pool.counters
                assert counters.demand_bytes + counters.wasted_bytes == counters.exact_bytes + counters.predicted_bytes, (
                    "bytes add up"
                )

        # ---- the model ---------------------------------------------------------------------------------------------

        def take(self, pick):
            return self.flying.pop(list(self.flying)[pick % len(self.flying)])

        def snapshot(self):
            state = {}
            for name, pool in self.scheduler.pools.items():
                state[name] = {
                    key: (pool.slots.slot_of(key), pool.slots.num_pins(key), pool.slots.is_resident(key))
                    for key in range(9)
                    if pool.slots.slot_of(key) is not None
                }
                state[name, "policy"] = list(pool.slots.policy.keys)
                state[name, "tickets"] = {t: (t.state, t.priority, t.deadline_ns, t.num_pins) for t in pool.tickets.values()}
            return state

        def num_free_for(self, store, keys, resident):
            """Slots that nobody needs: neither this demand nor a pin nor a read."""
            slots = self.scheduler.pools[store].slots
            return slots.num_free + sum(not slots.num_pins(key) and key not in keys for key in resident)

        def waiting(self, priority):
            """Reads that are wanted and not at the reader, from what the model knows."""
            flying = {(order.ticket, order.bits) for order in self.flying.values()}
            return [
                (ticket, part)
                for pool in self.scheduler.pools.values()
                for ticket in pool.tickets.values()
                for part in pool.parts
                if ticket.priority == priority and not self.arrived.get(ticket, 0) & part and (ticket, part) not in flying
            ]

        def check_order(self, order):
            ticket = order.ticket
            assert ticket.demanded or ticket.issue_ns < self.now or ticket.deadline_ns >= self.now, "read past its deadline"
            assert self.scheduler.pools[ticket.store].slots.slot_of(ticket.key) == order.slot, "a read has the slot of its key"
            assert order.slot < self.scheduler.pools[ticket.store].slots.capacity, "a read into a lent slot"
            for other in self.flying.values():
                if other.ticket.store == ticket.store and other.slot == order.slot:
                    assert other.ticket is ticket, "two tickets write into one slot"
                    assert not other.bits & order.bits, "two reads of the same bytes"
                if other.ticket.store == ticket.store and other.ticket.key == ticket.key and not other.ticket.final:
                    assert other.ticket is ticket, "two reads of one identity"
            for bit in BITS[ticket.store]:
                if order.bits & bit:
                    self.memory[ticket.store][order.slot][bit] = None

        def check_limits(self):
            flying = list(self.flying.values())
            for queue, depth in DEPTH.items():
                assert sum(order.queue == queue for order in flying) <= depth, "a queue keeps its depth"
            for priority, budget in self.scheduler.config.limits.budgets.items():
                below = [order for order in flying if order.ticket.priority >= priority]
                filling = {order.ticket for order in below if not order.ticket.final}
                assert sum(order.num_bytes for order in below) <= budget.num_bytes, "a budget of bytes"
                assert len(below) <= budget.reads, "a budget of reads"
                assert len(filling) <= budget.slots, "a budget of slots"

        def check_precedence(self, orders):
            """No class overtakes a more urgent one; what is exact starts as long as its own queue has room."""
            least = max((order.priority for order in orders), default=s.Priority.P0)
            for priority in s.Priority:
                if priority < least:
                    assert not self.waiting(priority), f"{least!r} went while {priority!r} waits"
            if least == s.Priority.P3:
                assert all(order.priority == s.Priority.P3 for order in self.flying.values()), "P3 beside other reads"
            for queue, depth in DEPTH.items():
                if sum(order.queue == queue for order in self.flying.values()) < depth:
                    assert not [ticket for ticket, _ in self.waiting(s.Priority.P0) if ticket.store == queue], (
                        "what is exact starts while its queue has room"
                    )

    return Tickets
