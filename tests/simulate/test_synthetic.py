"""Synthetic routes reproduce the published marginals; planted ones have the locality they were planted with."""

from dataclasses import asdict, replace

import numpy as np
import pytest

from workbench.errors import BadInput
from workbench.schema import ROUTE_SCHEMA, read_routes, write_routes
from workbench.simulate import planted
from workbench.simulate.events import array_events, route_events, route_frame
from workbench.simulate.marginals import PUBLISHED, marginals
from workbench.simulate.replay import miss_counts
from workbench.simulate.synthetic import FLASH_NEXT_LIKE, RouteModel, synthetic_routes

SHAPE = {"num_requests": 2, "num_tokens": 40, "num_layers": 3, "num_experts": 64, "top_k": 4}
SMALL = RouteModel(num_layers=3, num_experts=64, top_k=4, num_early_layers=1)


def assert_as_published(requests, tolerance=0.05):
    for name, published in asdict(PUBLISHED).items():
        assert np.mean([getattr(found, name) for found in requests]) == pytest.approx(published, rel=tolerance), name


def test_marginals_are_the_published_ones_at_a_quarter_of_the_layers():
    model = replace(FLASH_NEXT_LIKE, num_layers=12, num_early_layers=2)
    routes = synthetic_routes(model, num_requests=1, num_tokens=383, seed=1)
    assert_as_published([marginals(routes[0], 512, num_early_layers=2)])


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
def test_marginals_are_the_published_ones_at_full_size(seed):
    routes = synthetic_routes(FLASH_NEXT_LIKE, num_requests=3, num_tokens=383, seed=seed)
    assert_as_published([marginals(request, 512) for request in routes])


def test_marginals_of_a_trace_counted_by_hand():
    routes = np.array([[[0, 1]], [[1, 2]], [[0, 2]], [[3, 4]], [[3, 4]]])
    found = marginals(routes, 20, num_early_layers=1)
    assert found.prev_token_overlap == found.early_overlap == pytest.approx((1 + 1 + 0 + 2) / 8)
    assert found.union_b4 == pytest.approx((5 + 5) / 2)
    assert found.reuse_distance_p50 == np.inf  # five of ten uses are the first of their record
    assert found.reused_within_64 == pytest.approx(5 / 10)
    assert (found.top_tenth_share, found.touched_share) == (pytest.approx(4 / 10), pytest.approx(5 / 20))


def test_a_seed_fixes_the_routes_and_ids_are_distinct():
    first, again, other = (synthetic_routes(SMALL, num_requests=2, num_tokens=20, seed=seed) for seed in (5, 5, 6))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert first.shape == (2, 20, 3, 4)
    assert (np.diff(np.sort(first, axis=-1), axis=-1) > 0).all()
    assert first.min() >= 0
    assert first.max() < 64


def test_a_request_uses_its_active_experts_and_hands_most_on():
    model = replace(SMALL, active_share=0.25, carried_share=0.75)
    one, two = synthetic_routes(model, num_requests=2, num_tokens=400, seed=0)
    for layer in range(3):
        sets = [set(request[:, layer].ravel().tolist()) for request in (one, two)]
        assert all(len(used) <= 16 for used in sets)
        assert 10 <= len(sets[0] & sets[1]) <= 16


def test_impossible_models_are_refused():
    with pytest.raises(BadInput, match="top-4 needs that many active experts, there are 3 of 64"):
        replace(SMALL, active_share=0.05)
    with pytest.raises(BadInput, match="more than 1"):
        replace(SMALL, popularity_share=0.8)


def test_independent_routes_overlap_by_chance_only():
    routes = planted.independent(**{**SHAPE, "num_tokens": 400}, seed=0)
    found = marginals(routes[0], 64)
    assert found.prev_token_overlap == pytest.approx(4 / 64, rel=0.2)
    assert found.union_b4 == pytest.approx(64 * (1 - (1 - 4 / 64) ** 4), rel=0.05)


def test_a_repeated_token_misses_once():
    routes = planted.repeated(**SHAPE, seed=0)
    assert (routes == routes[:, :1]).all()
    assert miss_counts(array_events(routes[:1], 64), 12, "lru").sum() == 12


def test_a_loop_defeats_lru_just_below_its_cycle():
    routes = planted.loop(**SHAPE, period=10)
    events, cycle = array_events(routes[:1], 64), 3 * 4 * 10
    assert miss_counts(events, cycle - 4, "lru").sum() == events.size
    assert miss_counts(events, cycle, "lru").sum() == cycle
    assert miss_counts(events, cycle - 4, "belady").sum() < events.size / 3
    with pytest.raises(BadInput, match="17 tokens needs 68 experts per layer, there are 64"):
        planted.loop(**SHAPE, period=17)


def test_a_scan_sweeps_past_its_hot_half():
    routes = planted.scan(**{**SHAPE, "num_tokens": 200}, num_hot=4)
    assert (routes[..., :2] < 4).all()
    assert (routes[..., 2:] >= 4).all()
    assert set(routes[..., 2:].ravel().tolist()) == set(range(4, 64))
    with pytest.raises(BadInput, match="can't have 1 hot experts of 64"):
        planted.scan(**SHAPE, num_hot=1)


def test_route_frames_keep_the_routes(tmp_path):
    routes = synthetic_routes(SMALL, num_requests=2, num_tokens=5, seed=0)
    frame = route_frame(routes, family="synthetic")
    assert dict(frame.schema) == ROUTE_SCHEMA
    path = tmp_path / "routes.parquet"
    write_routes(frame, path, num_layers=3, num_experts=64, top_k=4)
    back, geometry = read_routes(path)
    assert geometry == {"num_layers": 3, "num_experts": 64, "top_k": 4}
    shuffled = back.sample(fraction=1.0, shuffle=True, seed=0)
    assert np.array_equal(route_events(shuffled, 64), array_events(routes, 64))
    assert array_events(routes, 64)[4].tolist() == [64 + int(expert) for expert in routes[0, 1, 1]]


def test_an_empty_trace_has_no_events():
    assert len(route_events(route_frame(np.empty((0, 0, 3, 4), np.int16), family="none"), 64)) == 0
