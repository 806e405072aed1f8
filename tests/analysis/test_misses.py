from itertools import pairwise

import numpy as np
import pytest

from workbench.analysis import misses
from workbench.analysis.bootstrap import Resampler
from workbench.analysis.draws import uniform_draws
from workbench.analysis.misses import (
    belady_gap,
    by_request,
    by_step,
    capacity_records,
    miss_curve,
    miss_ratio,
    missed_records,
)
from workbench.analysis.routes import Routes


@pytest.fixture
def hand():
    """Two requests of one layer; the first token of each is its prompt."""
    tokens = [[0, 1], [0, 2], [0, 1], [3, 4], [0, 1], [0, 1]]
    return Routes(
        experts=np.array(tokens)[:, None, :],
        request=np.array([0, 0, 0, 1, 1, 1]),
        decoded=np.array([False, True, True, False, True, True]),
        layers=(0,),
        num_experts=8,
        splits=("held_out", "held_out"),
    )


def test_lru_misses_of_a_hand_computed_session(hand):
    # slots 3: {0,1} | +2 | hits | 3,4 push out 2 and one of 0,1 (the older: rank order 0 then 1) | 0 back | hits
    missed = missed_records(hand, 3, "lru")
    assert missed.tolist() == [2, 1, 0, 2, 1, 0]
    assert by_request(hand, missed).tolist() == [1, 1]
    assert by_step(hand, missed).tolist() == [1.0, 0.0]


def test_emptying_the_cache_between_requests_makes_each_start_cold(hand):
    assert missed_records(hand, 8, "lru").tolist() == [2, 1, 0, 2, 0, 0]
    assert missed_records(hand, 8, "lru", keep_cache=False).tolist() == [2, 1, 0, 2, 2, 0]


def test_layers_share_one_cache_but_no_records():
    one = Routes(
        experts=np.array([[[0, 1], [0, 1]], [[0, 1], [0, 1]]]),
        request=np.zeros(2, dtype=int),
        decoded=np.ones(2, dtype=bool),
        layers=(0, 1),
        num_experts=4,
        splits=("held_out",),
    )
    assert missed_records(one, 4, "lru").tolist() == [4, 0]
    assert missed_records(one, 2, "lru").tolist() == [4, 4]


def test_the_curve_reports_rates_bytes_and_intervals(make_routes):
    routes = make_routes(prompt=5)
    fractions = (0.25, 0.5, 1.0)
    resampler = Resampler(routes.num_requests, num_resamples=50)
    traces = [("measured", routes, ("lru", "belady")), ("uniform draws", uniform_draws(routes, 1), ("lru",))]
    table, missed = miss_curve(traces, fractions, resampler, record_bytes=100)
    assert table.height == 9
    assert table["capacity_records"].unique().sort().to_list() == [8, 16, 32] == [capacity_records(routes, f) for f in fractions]
    for row in table.iter_rows(named=True):
        assert row["misses_per_token_low"] <= row["misses_per_token"] <= row["misses_per_token_high"]
        assert row["demand_bytes_per_token"] == pytest.approx(100 * row["misses_per_token"])
        assert row["hit_rate"] == pytest.approx(1 - row["misses_per_token"] / 8)
        counts = missed[row["trace"], row["policy"], row["fraction"]]
        assert row["misses_per_token"] == pytest.approx(counts[routes.decoded].sum() / routes.decoded.sum())
    by = {(r["trace"], r["policy"], r["fraction"]): r["misses_per_token"] for r in table.iter_rows(named=True)}
    assert all(by["measured", "belady", f] <= by["measured", "lru", f] for f in fractions)
    assert all(by["measured", "lru", a] >= by["measured", "lru", b] for a, b in pairwise(fractions))
    assert by["uniform draws", "lru", 0.25] > by["measured", "lru", 0.25]


def test_processes_change_nothing(make_routes, monkeypatch):
    routes = make_routes()
    curves = []
    for pool_pays in (10**9, 0):
        monkeypatch.setattr(misses, "POOL_PAYS", pool_pays)
        traces = [("measured", routes, ("lru",))]
        curves.append(miss_curve(traces, (0.25, 0.5), Resampler(routes.num_requests, num_resamples=50), record_bytes=1))
    alone, over_processes = curves
    assert alone[0].equals(over_processes[0])
    assert all((alone[1][key] == over_processes[1][key]).all() for key in alone[1])


def test_a_trace_against_itself_has_ratio_one_without_spread(make_routes):
    routes = make_routes()
    missed = missed_records(routes, 8, "lru")
    ratio = miss_ratio(routes, missed, routes, missed, Resampler(routes.num_requests))
    assert (float(ratio.value), float(ratio.low), float(ratio.high)) == (1.0, 1.0, 1.0)


def test_the_gap_to_belady_is_a_ratio_at_equal_capacity(hand):
    traces = [("measured", hand, ("lru", "belady")), ("uniform draws", hand, ("lru",))]
    resampler = Resampler(2, num_resamples=100)
    _, missed = miss_curve(traces, (0.375, 1.0), resampler, record_bytes=1)
    gap = belady_gap(hand, missed, resampler)
    # at 3 slots LRU misses 2 (above); Belady keeps 0 or 1 when 3 and 4 come, and misses 2 as well; with all, 2 is a first use
    assert gap.select("policy", "fraction").rows() == [("lru", 0.375), ("lru", 1.0)]
    lru, belady = (by_request(hand, missed["measured", name, 0.375]).sum() for name in ("lru", "belady"))
    assert gap["gap"].to_list() == [lru / belady, 1.0]
    assert (gap["gap_low"] <= gap["gap"]).all()


def test_where_belady_misses_nothing_there_is_no_gap(hand):
    nothing = {("measured", name, 1.0): np.zeros(6) for name in ("lru", "belady")}
    assert belady_gap(hand, nothing, Resampler(2, num_resamples=10)).is_empty()
