from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from workbench.analysis import locality_tables as tables
from workbench.analysis.bootstrap import Resampler
from workbench.analysis.draws import uniform_draws
from workbench.analysis.locality import locality_sums


@pytest.fixture
def repeated(make_routes):
    """Every token of a request selects what its first token selects."""
    routes = make_routes(top_k=4, experts=16)
    return routes.with_experts(np.repeat(routes.experts[::40], 40, axis=0))


def measure(routes):
    return routes, locality_sums(routes), Resampler(routes.num_requests, num_resamples=100)


def test_repeated_tokens_overlap_wholly_and_their_unions_stay_at_top_k(repeated):
    overlap, unions = tables.overlap_table(*measure(repeated)), tables.union_table(*measure(repeated))
    assert overlap["overlap"].to_list() == [1.0, 1.0]
    assert overlap["overlap_uniform"].to_list() == [0.25, 0.25]
    assert unions["block"].to_list() == [2, 3, 4, 5]
    assert unions["union"].to_list() == [4.0] * 4
    assert unions["union_disjoint"].to_list() == [8, 12, 16, 20]
    acceptance = tables.acceptance_table(locality_sums(repeated), 4, Resampler(6, num_resamples=100))
    assert acceptance["acceptance_needed"].to_list() == pytest.approx([1 / 2, 1 / 3, 1 / 4, 1 / 5])


def test_uniform_draws_stand_at_their_own_closed_form(make_routes):
    routes, sums, resampler = measure(uniform_draws(make_routes(num_requests=20, tokens=300), seed=2))
    unions = tables.union_table(routes, sums, resampler)
    assert unions["ratio_to_uniform"].to_list() == pytest.approx([1] * 4, abs=0.01)
    overlap = tables.mean_overlap(routes, sums, resampler)
    assert float(overlap.low) < float(overlap.value) < float(overlap.high)
    assert float(overlap.value) == pytest.approx(0.25, abs=0.01)
    unique = tables.unique_table(routes, sums, resampler)
    assert unique["unique"].to_list() == pytest.approx([16, 16])


def test_the_least_acceptance_needed_is_that_of_the_best_block(make_routes):
    routes, sums, resampler = measure(make_routes())
    acceptance = tables.acceptance_table(sums, routes.top_k, resampler)
    least = tables.least_acceptance_needed(sums, routes.top_k, resampler)
    assert float(least.value) == pytest.approx(acceptance["acceptance_needed"].min())
    assert float(least.low) <= float(least.value) <= float(least.high)


def test_break_even_says_for_each_block_and_tau_whether_the_union_pays():
    table = tables.break_even_table(pl.DataFrame({"block": [2, 5], "union": [15.0, 39.0]}), top_k=10)
    assert table.filter(pl.col("block") == 2)["tau"].to_list() == [1.0, 1.5, 2.0]
    assert table.filter(pl.col("block") == 2)["holds"].to_list() == [False, False, True]
    assert table.filter(block=5, tau=4.0)["byte_ratio"].item() == pytest.approx(39 / 40)
    assert table.filter(block=5, tau=4.0)["holds"].item()
    assert not table.filter(block=5, tau=3.5)["holds"].item()


def test_skew_of_hand_computed_uses(make_routes):
    routes, sums, resampler = measure(make_routes(experts=20, layers=2))
    uses = np.zeros_like(sums.uses)
    uses[:, 0, :] = 5
    uses[:, 1, :2] = 50
    table = tables.skew_table(routes, replace(sums, uses=uses), resampler)
    assert table["hot_share"].to_list() == pytest.approx([0.1, 1.0])
    assert table["entropy"].to_list() == pytest.approx([1.0, np.log(2) / np.log(20)])


def test_reuse_distances_run_up_to_all_uses(make_routes):
    sums = replace(locality_sums(make_routes()), reuse=np.array([[2, 3, 0, 1], [2, 1, 0, 1]]))
    table = tables.reuse_table(sums)
    assert table.rows() == [(1, 4, 0.4), (3, 2, pytest.approx(0.6)), (None, 4, pytest.approx(1.0))]
    within = tables.reuse_within_table(sums, Resampler(2, num_resamples=50), distances=(1, 2, 3))
    assert within["share"].to_list() == pytest.approx([0.4, 0.4, 0.6])
    assert (within["share_low"] <= within["share"]).all()
    assert tables.median_reuse_distance(sums) == 1.0
    assert np.isnan(tables.median_reuse_distance(replace(sums, reuse=np.array([[7, 0, 0]]))))
