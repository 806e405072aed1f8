import numpy as np
import pytest

from workbench.analysis.draws import drawn_overlap, drawn_union, popularity_draws, uniform_draws, uniform_usage
from workbench.analysis.locality import locality_sums
from workbench.bounds import expected_union


@pytest.mark.parametrize("draw", [uniform_draws, popularity_draws])
def test_draws_keep_the_tokens_and_draw_distinct_experts(make_routes, draw):
    routes = make_routes(prompt=3)
    drawn = draw(routes, seed=1)
    assert drawn.experts.shape == routes.experts.shape
    assert drawn.request is routes.request
    assert drawn.decoded is routes.decoded
    assert all(len(set(token)) == routes.top_k for token in drawn.experts.reshape(-1, routes.top_k).tolist())
    assert (draw(routes, seed=1).experts == drawn.experts).all()
    assert (draw(routes, seed=2).experts != drawn.experts).any()


def test_popularity_draws_keep_each_experts_share_and_uniform_draws_level_it(make_routes):
    routes = make_routes(num_requests=20, tokens=200)
    assert np.abs(popularity_draws(routes, seed=1).usage - routes.usage).max() < 0.03
    assert np.abs(uniform_draws(routes, seed=1).usage - 4 / 16).max() < 0.03
    assert np.abs(routes.usage - 4 / 16).max() > 0.15


def test_closed_forms_equal_what_draws_measure(make_routes):
    routes = popularity_draws(make_routes(num_requests=20, tokens=300), seed=4)
    sums = locality_sums(routes)
    overlap = sums.overlap.sum(axis=0) / sums.pairs.sum() / routes.top_k
    assert drawn_overlap(routes.usage, routes.top_k) == pytest.approx(overlap, rel=0.03)
    for block in (2, 3, 4, 5):
        union = sums.unions[block].sum(axis=0) / sums.blocks[block].sum()
        assert drawn_union(routes.usage, block) == pytest.approx(union, rel=0.02)


def test_equal_popularity_gives_the_uniform_formula():
    usage = uniform_usage(3, 512, 10)
    assert drawn_union(usage, 4).tolist() == pytest.approx([expected_union(512, 10, 4)] * 3)
    assert drawn_union(usage, 4)[0] == pytest.approx(38.84, abs=0.01)
    assert drawn_overlap(usage, 10)[0] == pytest.approx(10 / 512)
