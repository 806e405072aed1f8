"""Every rule has a line that keeps it: with that line changed, the state machine must find the fault."""

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

_LEASE_THEN_ADMIT = """    slots.lease_all(present, demand.slots)
    slots.touch(present)
    pool.evicted(slots.admit(absent))
"""
_ADMIT_THEN_LEASE = """    pool.evicted(slots.admit(absent))
    slots.lease_all(present, demand.slots)
    slots.touch(present)
"""
_FAIL_ALL = """self._lives.fail(ticket, error)
                for demand in [d for mine in self._demands.values() for d in mine]:
                    demand.error = error"""

MUTANTS = {
    "a demand is released exactly once": ("scheduler", "if not demand.open:", "if demand.open is None:"),
    "a stale generation publishes nothing": ("traffic", "return order, lives and not order.ticket.final", "return order, True"),
    "one read in flight an identity; a second demand joins": (
        "lifecycle",
        "ticket = tickets.get(key) or unused.pop(key, None)",
        "ticket = unused.pop(key, None)",
    ),
    "an exact demand raises priority and deadline": (
        "lifecycle",
        "self._hasten(ticket, Priority.P0, demand.event.deadline_ns)",
        "self._hasten(ticket, ticket.priority, ticket.deadline_ns)",
    ),
    "a leased slot is never evicted": (
        "slots",
        "victims += self._worst(count - len(victims), self._leases)",
        "victims += self._worst(count - len(victims), ())",
    ),
    "a slot is never given away under a read": ("slots", "if self._reads[slot]:", "if self._reads[slot] < 0:"),
    "all hits are protected before anything is admitted": ("scheduler", _LEASE_THEN_ADMIT, _ADMIT_THEN_LEASE),
    "a busy answer changes nothing": (
        "scheduler",
        "if room < len(present) and room < sum(not slots.leases(key) for key in present):",
        "if room < 0:",
    ),
    "an exact read is retried a bounded number of times": (
        "scheduler",
        "if ticket.demanded and ticket.attempts < self.config.max_attempts:",
        "if ticket.demanded:",
    ),
    "a failed predicted read is dropped": (
        "scheduler",
        "if ticket.demanded and ticket.attempts < self.config.max_attempts:",
        "if ticket.attempts < self.config.max_attempts:",
    ),
    "a failure is its request's alone": ("scheduler", "self._lives.fail(ticket, error)", _FAIL_ALL),
    "no class overtakes a more urgent one": (
        "queue",
        "while not self._waiting[most_urgent]:",
        "while most_urgent < 3 and not any(h and may_go(h[0][2]) for h in self._heaps[most_urgent].values()):",
    ),
    "speculation keeps its budget of bytes": ("lanes", "+ num_bytes <= budget.num_bytes", ">= 0"),
    "speculation keeps its budget of slots": ("lanes", "+ slots <= budget.slots", ">= 0"),
    "speculation keeps its budget of lanes": ("lanes", "+ 1 <= budget.lanes", ">= 0"),
    "P3 goes only when nothing else is in flight": (
        "lanes",
        "if priority == Priority.P3 and self.busy:",
        "if priority == Priority.P3 and False:",
    ),
    "each store has lanes of its own": (
        "lanes",
        "if self._lanes[lane] >= self.config.depth[lane]:",
        "if sum(self._lanes.values()) >= max(self.config.depth.values()):",
    ),
    "a full queue answers busy": (
        "queue",
        "return bound is None or self._waiting[priority] + count <= bound",
        "return bound is None or count <= bound",
    ),
    "compute waits on the smallest set": (
        "ticket",
        "return not self.wanted & components & ~self.ready_bits",
        "return not self.wanted & ~self.ready_bits",
    ),
    "what another request holds goes on": (
        "lifecycle",
        "if ticket.leases:\n            return",
        "if ticket.leases < 0:\n            return",
    ),
    "a cancel ends the generation": (
        "scheduler",
        "self._generations[request] = self.generation(request) + 1",
        "self._generations[request] = self.generation(request)",
    ),
    "a prediction of a dead generation plans nothing": (
        "scheduler",
        "or (generation is not None and generation != current)",
        "or (generation is not None and generation < -1)",
    ),
    "a prediction is not read after its deadline": (
        "scheduler",
        "and ticket.deadline_ns < now_ns:",
        "and ticket.deadline_ns < 0:",
    ),
    "what is predicted stays while something else can leave": (
        "slots",
        "kept = self._leases.keys() | self._protected.keys()",
        "kept = set(self._leases)",
    ),
    "a prediction is no use": ("slots", "        if predicted:\n", "        if predicted is None:\n"),
    "a rejected suffix waits behind everything else": (
        "scheduler",
        "self.traffic.reclass(ticket, Priority.P3)",
        "self.traffic.reclass(ticket, ticket.priority)",
    ),
    "a prediction that waits holds no slot": (
        "lifecycle",
        "if not ticket.demanded and not ticket.issued:",
        "if not ticket.demanded and ticket.final:",
    ),
    "a read that hangs is given up": ("scheduler", ">= hang_ns and", ">= 3 * hang_ns and"),
    "what is dropped leaves": ("scheduler", "for key in drop:", "for key in () if demand.slots else drop:"),
    "what somebody holds is not dropped": (
        "slots",
        "if key in self._leases or key not in self._resident:",
        "if key not in self._resident:",
    ),
    "a leased slot is not lent": (
        "slots",
        "or any(key in self._leases for key in lodgers)",
        "or any(key < 0 for key in lodgers)",
    ),
    "a slot that drains is not lent": (
        "slots",
        "or any(s >= first for s in self._draining)",
        "or any(s < 0 for s in self._draining)",
    ),
    "a lent slot is given to nobody": (
        "slots",
        "self._free = [slot for slot in self._free if slot < first]",
        "self._free = [slot for slot in self._free if slot >= 0]",
    ),
    "who stays moves out of lent slots": (
        "slots",
        "for key in lodgers if key in self._slot}",
        "for key in lodgers if key in self._slot and key % 2}",
    ),
    "lent slots are taken back whole": (
        "slots",
        "self._free += range(self._first_lent, self.num_slots)",
        "self._free += range(self._first_lent + 1, self.num_slots)",
    ),
    "nothing is predicted while slots are lent": ("scheduler", "if pool.slots.num_lent or (", "if pool.slots.num_lent < 0 or ("),
    "a loan ends predictions": ("scheduler", "            self.cancel_ticket(ticket)\n", "            self.generation(0)\n"),
}


@pytest.mark.parametrize("rule", MUTANTS)
def test_broken_rule_is_caught(rule, rules, mutant):
    machine = rules.build_machine(mutant(*MUTANTS[rule]))
    search = settings(
        max_examples=2000,
        stateful_step_count=50,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        report_multiple_bugs=False,
    )
    with pytest.raises(Exception):  # noqa: B017, PT011 - a broken rule may surface as any error
        run_state_machine_as_test(machine, settings=search)


def test_a_copy_without_a_fault_is_green(rules, mutant):
    machine = rules.build_machine(mutant("ticket", "NEVER_NS = (1 << 63) - 1", "NEVER_NS = (1 << 62) - 1"))
    run_state_machine_as_test(machine, settings=settings(max_examples=20, stateful_step_count=50, deadline=None, database=None))
