import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.errors import BadInput
from workbench.runtime.budget import CacheBudget, plan_cache

LEAST = CacheBudget(num_slots=80, stride_bytes=45_056, num_pages=16, page_bytes=4096)
MOST = CacheBudget(num_slots=1024, stride_bytes=45_056, num_pages=1034, page_bytes=4096)


@given(st.integers(LEAST.num_bytes, 2 * MOST.num_bytes))
def test_a_plan_keeps_to_its_budget_and_between_the_limits(cache_bytes):
    plan = plan_cache(LEAST, MOST, cache_bytes)
    assert plan.num_bytes <= cache_bytes
    assert LEAST.num_slots <= plan.num_slots <= MOST.num_slots
    assert LEAST.num_pages <= plan.num_pages <= MOST.num_pages
    unused = cache_bytes - plan.num_bytes
    assert unused < plan.stride_bytes + plan.page_bytes or plan == MOST or plan.num_pages == MOST.num_pages


def test_the_limits_are_reached():
    assert plan_cache(LEAST, MOST, LEAST.num_bytes) == LEAST
    assert plan_cache(LEAST, MOST, MOST.num_bytes) == MOST


def test_a_model_without_ngrams_has_no_pages():
    least = CacheBudget(num_slots=4, stride_bytes=4096, num_pages=0, page_bytes=0)
    most = CacheBudget(num_slots=9, stride_bytes=4096, num_pages=0, page_bytes=0)
    assert plan_cache(least, most, 7 * 4096) == CacheBudget(num_slots=7, stride_bytes=4096, num_pages=0, page_bytes=0)


def test_below_the_working_set_both_figures_are_named():
    with pytest.raises(BadInput, match=f"{LEAST.num_bytes - 1:,} bytes .*{LEAST.num_bytes:,} bytes"):
        plan_cache(LEAST, MOST, LEAST.num_bytes - 1)
