"""Every rule has a line that keeps it: with that line changed, the state machine must find the fault."""

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

_LEASE_THEN_ADMIT = """    for key in present:
        demand.slots[key] = slots.lease(key)
    slots.policy.touch(present)
    pool.evicted(slots.admit(absent))
"""
_ADMIT_THEN_LEASE = """    pool.evicted(slots.admit(absent))
    for key in present:
        demand.slots[key] = slots.lease(key)
    slots.policy.touch(present)
"""

MUTANTS = {
    "a demand is released exactly once": ("scheduler", "if not demand.open:", "if demand.open is None:"),
    "a stale generation publishes nothing": ("traffic", "return order, lives and not order.ticket.final", "return order, True"),
    "one read in flight an identity; a second demand joins": (
        "scheduler",
        "ticket = pool.tickets.get(key) or pool.unused.pop(key, None)",
        "ticket = pool.unused.pop(key, None)",
    ),
    "an exact demand raises priority and deadline": (
        "scheduler",
        "self._hasten(ticket, Priority.P0, demand.event.deadline_ns)",
        "self._hasten(ticket, ticket.priority, ticket.deadline_ns)",
    ),
    "a leased slot is never evicted": (
        "slots",
        "victims = self.policy.evict(count, self._leases)",
        "victims = self.policy.evict(count, ())",
    ),
    "a slot is never given away under a read": ("slots", "if self._reads[slot]:", "if self._reads[slot] < 0:"),
    "all hits are protected before anything is admitted": ("scheduler", _LEASE_THEN_ADMIT, _ADMIT_THEN_LEASE),
    "a busy answer changes nothing": (
        "scheduler",
        "if len(absent) > slots.num_available - sum(not slots.leases(key) for key in present):",
        "if len(absent) > slots.num_available:",
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
    "a failure is its request's alone": (
        "scheduler",
        "for demand in ticket.demands:\n            demand.error = error",
        "for demand in [d for mine in self._demands.values() for d in mine]:\n            demand.error = error",
    ),
    "no class overtakes a more urgent one": (
        "queue",
        "return min(heads)[2] if heads else None",
        "if heads: return min(heads)[2]",
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
        "missing = bool(self.wanted & components & ~self.ready_bits)",
        "missing = bool(self.wanted & ~self.ready_bits)",
    ),
    "what another request holds goes on": (
        "scheduler",
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
        "if generation is not None and generation != self.generation(event.request):",
        "if generation is not None and generation < -1:",
    ),
    "a prediction is not read after its deadline": (
        "scheduler",
        "and ticket.deadline_ns < now_ns:",
        "and ticket.deadline_ns < 0:",
    ),
    "a prediction that waits holds no slot": (
        "scheduler",
        "if not ticket.demanded and not ticket.issued:",
        "if not ticket.demanded and ticket.final:",
    ),
    "a read that hangs is given up": ("scheduler", ">= hang_ns and", ">= 3 * hang_ns and"),
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
