from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.bounds import (
    LayerCost,
    acceptance_needed,
    bandwidth_bound_tps,
    dependency_bound_ns,
    expected_union,
    ideal_routed_bytes_per_token,
    union_break_even,
)
from workbench.geometry import FLASH_NEXT
from workbench.units import GB

costs = st.builds(LayerCost, **{field.name: st.floats(0, 1e9) for field in fields(LayerCost)})


def test_bandwidth_binds_flash_next():
    assert bandwidth_bound_tps(FLASH_NEXT.demand_bytes_per_token, 13.27104 * GB) == pytest.approx(10)
    assert bandwidth_bound_tps(0, GB) == float("inf")


def test_ideal_bits_scale():
    assert ideal_routed_bytes_per_token(FLASH_NEXT, 4) == 2 * ideal_routed_bytes_per_token(FLASH_NEXT, 2)


def test_the_notes_example_of_break_even():
    # a block of five with tau = 4 must average fewer than 40 experts a layer rather than its worst case of 50
    assert union_break_even(4, 10) == 40
    assert acceptance_needed(40, 5, 10) == pytest.approx(0.8)


def test_expected_union_of_independent_draws():
    assert expected_union(128, 10, 1) == pytest.approx(10)
    assert expected_union(2, 1, 2) == pytest.approx(1.5)
    assert expected_union(10, 10, 5) == 10


@given(st.integers(2, 512), st.integers(1, 10), st.integers(1, 8))
def test_a_union_lies_between_one_token_and_all(num_experts, top_k, block):
    top_k = min(top_k, num_experts)
    union = expected_union(num_experts, top_k, block)
    assert top_k - 1e-9 <= union <= min(num_experts, top_k * block) + 1e-9


LAYER = LayerCost(pre_router_ns=10, first_read_ns=5, all_reads_ns=21, shared_ns=3, hits_ns=0, experts_ns=20, last_expert_ns=2)


@pytest.mark.parametrize(
    ("changes", "bound_ns"),
    [
        ({}, 10 + 5 + 20),
        ({"all_reads_ns": 100}, 10 + 100 + 2),
        ({"shared_ns": 8}, 10 + 8 + 20),
        ({"hits_ns": 1}, 10 + 5 + 19),
        ({"hits_ns": 4}, 10 + 3 + 20),
        ({"first_read_ns": 0, "all_reads_ns": 0}, 10 + 3 + 20),
    ],
)
def test_dependency_bound_takes_the_later_chain(changes, bound_ns):
    assert dependency_bound_ns([replace(LAYER, **changes)]) == bound_ns


def test_dependency_bound_adds_layers_and_what_lies_outside_them():
    assert dependency_bound_ns([LAYER, LAYER], fixed_ns=7) == 7 + 2 * 35
    assert dependency_bound_ns([]) == 0


@given(st.lists(costs, max_size=5))
def test_dependency_bound_is_never_below_compute_alone(layers):
    assert dependency_bound_ns(layers) >= sum(layer.pre_router_ns + layer.experts_ns for layer in layers) - 1e-3
