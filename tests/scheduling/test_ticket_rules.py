import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

import workbench.scheduling


def test_rules_hold_whatever_happens(rules):
    machine = rules.build_machine(workbench.scheduling)
    run_state_machine_as_test(machine, settings=settings(max_examples=200, stateful_step_count=50, deadline=None))


@pytest.mark.soak
def test_rules_hold_for_long(rules):
    machine = rules.build_machine(workbench.scheduling)
    run_state_machine_as_test(machine, settings=settings(max_examples=5000, stateful_step_count=80, deadline=None))
