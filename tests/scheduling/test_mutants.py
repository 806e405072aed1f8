"""Every rule has code that keeps it: with that behaviour changed, an assertion of the state machine must find the fault."""

import re
from dataclasses import dataclass, replace

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

import workbench.scheduling
from workbench.scheduling import Priority, Scheduler, SlotTable, Ticket, scheduler
from workbench.scheduling.lifecycle import Lifecycle
from workbench.scheduling.limits import InFlight
from workbench.scheduling.pool import Pool
from workbench.scheduling.reads import ReadQueue, Reads


@dataclass(frozen=True)
class Mutant:
    """A function of the scheduler that behaves otherwise."""

    owner: object
    name: str
    change: object
    """`(function) -> function` that takes its place."""
    caught: str
    """What the assertion says that finds it: a regular expression."""


MUTANTS = {}


def mutant(rule, owner, name, caught):
    """Registers a change of `owner.name` that breaks a rule."""

    def register(change):
        MUTANTS[rule] = Mutant(owner, name, change, caught)
        return change

    return register


# ---- demands ---------------------------------------------------------------------------------------------------------------


@mutant("a demand is released exactly once", Scheduler, "release", "released exactly once")
def _(release):
    def twice(self, demand, *, drop=()):
        return release(self, demand, drop=drop) or True

    return twice


@mutant("one read in flight an identity; a second demand joins", Lifecycle, "cover", "one ticket an identity")
def _(cover):
    def forgetful(self, pool, demand, keys, now_ns):
        known = dict(pool.tickets)
        pool.tickets.clear()
        cover(self, pool, demand, keys, now_ns)
        pool.tickets.update(known)

    return forgetful


@mutant("an exact demand raises priority and deadline", Lifecycle, "_hasten", "raises the priority|the deadline")
def _(hasten):
    return lambda self, ticket, priority, deadline_ns: None


@mutant("all hits are pinned before anything is admitted", scheduler, "_hold", "hits are what was resident|permitted call raises")
def _(hold):
    def admits_first(pool, demand, keys):
        slots = pool.slots
        present, absent = slots.partition(keys)
        if slots.num_available - len(absent) < sum(not slots.num_pins(key) for key in present):
            return False
        slots.policy.start_event()
        pool.evicted(slots.admit(absent))
        slots.pin_all(present, demand.slots)
        slots.touch(present)
        slots.pin_all(absent, demand.slots)
        return True

    return admits_first


@mutant("a busy answer changes nothing", scheduler, "_hold", "a busy demand changes nothing|permitted call raises")
def _(hold):
    def touches(pool, demand, keys):
        held = hold(pool, demand, keys)
        if not held:
            pool.slots.policy.touch(pool.slots.partition(keys)[0])
        return held

    return touches


@mutant("compute waits on the smallest set", Ticket, "has", "the smallest set")
def _(has):
    return lambda self, components=-1: has(self)


@mutant(
    "what another request pins goes on",
    Lifecycle,
    "unpin",
    "pins are those|pinned key left|what is dropped leaves|permitted call raises",
)
def _(unpin):
    def ends(self, ticket, demand):
        ticket.num_pins = 1
        unpin(self, ticket, demand)

    return ends


# ---- slots -----------------------------------------------------------------------------------------------------------------


@mutant(
    "a pinned slot is never evicted",
    SlotTable,
    "_evict",
    "pinned|hits are|every slot is|what is predicted stays|permitted call raises",
)
def _(evict):
    def heedless(self, count):
        victims = self.policy.evict(max(0, count), ())
        for key in victims:
            self._resident.discard(key)
            self._vacate(key)
        return victims

    return heedless


@mutant("a slot is never given away under a read", SlotTable, "_vacate", "two tickets write into one slot|a slot that drains")
def _(vacate):
    def at_once(self, key):
        reads, self._reads = self._reads, [0] * self.num_slots
        vacate(self, key)
        self._reads = reads

    return at_once


@mutant("what is predicted stays while something else can leave", SlotTable, "_evict", "what is predicted stays")
def _(evict):
    def heedless(self, count):
        protected, self._protected = self._protected, {}
        victims = evict(self, count)
        self._protected = {key: place for key, place in protected.items() if key not in victims}
        return victims

    return heedless


@mutant("a prediction is no use", SlotTable, "admit", "the policy knows what somebody has used")
def _(admit):
    return lambda self, keys, *, predicted=False: admit(self, keys)


@mutant("what is dropped leaves", Pool, "drop", "what is dropped leaves")
def _(drop):
    return lambda self, key: None


@mutant("what a demand pins is not dropped", SlotTable, "drop", "what is dropped leaves, unless it is held")
def _(drop):
    def heedless(self, key):
        pins, self._pins = self._pins, {}
        dropped = drop(self, key)
        self._pins = pins
        return dropped

    return heedless


@mutant("a pinned slot is not lent", SlotTable, "lend", "a pinned slot is not lent|a loan tells what it evicted")
def _(lend):
    def heedless(self, count):
        first = self.num_slots - count
        mine = {key: num for key, num in self._pins.items() if self._slot[key] >= first}
        for key in mine:
            del self._pins[key]
        loan = lend(self, count)
        self._pins |= mine
        return loan

    return heedless


@mutant("a slot that drains is not lent", SlotTable, "lend", "a slot that drains is not lent")
def _(lend):
    def heedless(self, count):
        first = self.num_slots - count
        lent = {slot for slot in self._draining if slot >= first}
        self._draining -= lent
        loan = lend(self, count)
        self._draining |= lent
        return loan

    return heedless


@mutant("a lent slot is given to nobody", SlotTable, "lend", "lent slot|every slot is accounted for|two tickets")
def _(lend):
    def keeps(self, count):
        loan = lend(self, count)
        self._free += loan.slots if loan is not None else ()
        return loan

    return keeps


@mutant("who stays moves out of lent slots", SlotTable, "lend", "resident bytes are whole|pinned slot")
def _(lend):
    def stays(self, count):
        loan = lend(self, count)
        for key, (old, _) in (loan.moves if loan is not None else {}).items():
            self._slot[key] = old
        return loan

    return stays


@mutant("lent slots are taken back whole", SlotTable, "take_back", "every slot is (accounted for|free or resident)")
def _(take_back):
    def loses_one(self):
        take_back(self)
        self._free.pop()

    return loses_one


# ---- reads -----------------------------------------------------------------------------------------------------------------


@mutant("a stale generation publishes nothing", Reads, "complete", "permitted call raises")
def _(complete):
    return lambda self, number: (complete(self, number)[0], True)


@mutant("an exact read is retried a bounded number of times", Scheduler, "on_error", "retried a bounded number")
def _(on_error):
    def for_ever(self, number, error):
        self.reads.order(number).ticket.attempts = 0
        return on_error(self, number, error)

    return for_ever


@mutant("a failed predicted read is dropped", Scheduler, "on_error", "retried a bounded number of times, if demanded")
def _(on_error):
    def retries(self, number, error):
        ticket = self.reads.order(number).ticket
        demanded, ticket.demanded = ticket.demanded, True
        on_error(self, number, error)
        ticket.demanded = demanded
        return ticket

    return retries


@mutant("a failure is its request's alone", Lifecycle, "fail", "a failure is its requests' alone")
def _(fail):
    def fails_all(self, ticket, error):
        fail(self, ticket, error)
        others = [other for pool in self._pools.values() for other in pool.tickets.values()]
        for demand in [demand for other in others for demand in other.demands]:
            demand.error = error

    return fails_all


@mutant("no class overtakes a more urgent one", ReadQueue, "head", "went while")
def _(head):
    def overtakes(self, may_start):
        for priority in Priority:
            waiting = self._waiting
            self._waiting = [count if at == priority else 0 for at, count in enumerate(waiting)]
            order = head(self, may_start) if waiting[priority] else None
            self._waiting = waiting
            if order is not None:
                return order
        return None

    return overtakes


def unbounded(field):
    def change(below):
        def generous(self, priority, num_bytes, slots, budget):
            return below(self, priority, num_bytes, slots, replace(budget, **{field: 1 << 60}))

        return generous

    return change


for _field, _what in {"num_bytes": "bytes", "slots": "slots", "reads": "reads"}.items():
    mutant(f"speculation keeps its budget of {_what}", InFlight, "_below", f"a budget of {_what}")(unbounded(_field))


@mutant("P3 goes only when nothing else is in flight", InFlight, "admits", "P3 beside other reads")
def _(admits):
    def beside(self, queue, priority, num_bytes, slots):
        if priority != Priority.P3:
            return admits(self, queue, priority, num_bytes, slots)
        budgets = [(above, budget) for above, budget in self._budgets if above <= priority]
        room = self._num_reads[queue] < self._depth[queue]
        return room and all(self._below(above, num_bytes, slots, budget) for above, budget in budgets)

    return beside


@mutant("each store has a queue of its own", InFlight, "admits", "what is exact starts while its queue has room")
def _(admits):
    def in_one(self, queue, priority, num_bytes, slots):
        full = sum(self._num_reads.values()) >= max(self._depth.values())
        return not full and admits(self, queue, priority, num_bytes, slots)

    return in_one


@mutant("a full queue answers busy", ReadQueue, "has_room", "a full queue answers busy")
def _(has_room):
    return lambda self, priority, count=1: True


@mutant("a read that hangs is given up", Scheduler, "expire", "a read that hangs is given up")
def _(expire):
    return lambda self, now_ns, hang_ns: expire(self, now_ns, 3 * hang_ns)


# ---- predictions -----------------------------------------------------------------------------------------------------------


@mutant("a cancel ends the generation", Scheduler, "cancel", "a cancel ends the generation")
def _(cancel):
    def goes_on(self, request):
        generation = self._generations.get(request, 0)
        count = cancel(self, request)
        self._generations[request] = generation
        return count

    return goes_on


@mutant("a prediction of a dead generation plans nothing", Scheduler, "prefetch", "plans nothing|a refused prediction is busy")
def _(prefetch):
    def forgetful(self, store, keys, origin, now_ns, *, priority, predictor="", generation=None):
        return prefetch(self, store, keys, origin, now_ns, priority=priority, predictor=predictor)

    return forgetful


@mutant("a prediction is not read after its deadline", scheduler, "_is_too_late", "read past its deadline")
def _(is_too_late):
    return lambda ticket, now_ns: False


@mutant("a rejected suffix waits behind everything else", Reads, "reclass", "a rejected suffix waits behind all else")
def _(reclass):
    def keeps(self, ticket, priority):
        reclass(self, ticket, ticket.priority if priority == Priority.P3 else priority)

    return keeps


@mutant("a prediction that waits holds no slot", Lifecycle, "withdraw_slot", "a prediction that waits holds no slot")
def _(withdraw_slot):
    return lambda self, ticket: None


@mutant("nothing is predicted while slots are lent", Scheduler, "prefetch", "while slots are lent")
def _(prefetch):
    def heedless(self, store, *about, **settings):
        slots = self.pools[store].slots
        first, slots._first_lent = slots._first_lent, slots.num_slots
        made = prefetch(self, store, *about, **settings)
        slots._first_lent = first
        return made

    return heedless


@mutant("a loan ends predictions", Scheduler, "cancel_ticket", "a loan ends predictions|what is demanded is not given up")
def _(cancel_ticket):
    return lambda self, ticket: False


@pytest.mark.parametrize("rule", MUTANTS)
def test_broken_rule_is_caught_by_an_assertion(rule, rules, monkeypatch):
    broken = MUTANTS[rule]
    monkeypatch.setattr(broken.owner, broken.name, broken.change(getattr(broken.owner, broken.name)))
    search = settings(
        max_examples=2000,
        stateful_step_count=50,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        report_multiple_bugs=False,
    )
    with pytest.raises(AssertionError) as found:
        run_state_machine_as_test(rules.build_machine(workbench.scheduling), settings=search)
    said = first_said(found.value)
    assert re.search(broken.caught, said), said


def first_said(error):
    """What the first assertion that failed says; the end of the machine, which runs in any case, may fail too."""
    first = error
    while (error := error.__context__) is not None:
        first = error if isinstance(error, AssertionError) else first
    return str(first).partition("\nFailing test case")[0]
