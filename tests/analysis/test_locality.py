import numpy as np
import pytest

from workbench.analysis.locality import locality_sums
from workbench.analysis.routes import Routes


def routes_from(*requests, num_experts=8, prompt=0):
    """One layer; each request is a list of its tokens' experts, the first `prompt` of them prefill."""
    experts = np.array([token for request in requests for token in request])[:, None, :]
    return Routes(
        experts=experts,
        request=np.repeat(np.arange(len(requests)), [len(request) for request in requests]),
        decoded=np.concatenate([np.arange(len(request)) >= prompt for request in requests]),
        layers=(0,),
        num_experts=num_experts,
        splits=("held_out",) * len(requests),
    )


HAND = [(0, 1), (1, 2), (3, 4), (0, 1)]


def test_overlap_unions_unique_and_uses_of_a_hand_computed_request():
    sums = locality_sums(routes_from(HAND), blocks=(2, 3))
    assert sums.tokens.tolist() == [4]
    assert (sums.pairs.tolist(), sums.overlap.tolist()) == ([3], [[1]])
    assert (sums.blocks[2].tolist(), sums.unions[2].tolist()) == ([3], [[3 + 4 + 4]])
    assert (sums.blocks[3].tolist(), sums.unions[3].tolist()) == ([2], [[5 + 5]])
    assert sums.unique.tolist() == [[5]]
    assert sums.uses[0, 0].tolist() == [2, 3, 1, 1, 1, 0, 0, 0]


def test_reuse_distances_of_a_hand_computed_request():
    # first uses 0 1 2 3 4; expert 1 again after 1 token, then after 2; expert 0 again after 3
    sums = locality_sums(routes_from(HAND), blocks=(2,))
    assert sums.reuse[0].tolist() == [5, 1, 1, 1, 0]


def test_prompt_tokens_are_history_but_are_not_counted():
    sums = locality_sums(routes_from(HAND, prompt=1), blocks=(2,))
    assert sums.tokens.tolist() == [3]
    assert (sums.pairs.tolist(), sums.overlap.tolist()) == ([3], [[1]])
    assert (sums.blocks[2].tolist(), sums.unions[2].tolist()) == ([2], [[4 + 4]])
    assert sums.uses[0, 0].tolist() == [1, 2, 1, 1, 1, 0, 0, 0]
    assert sums.reuse[0].tolist() == [3, 1, 1, 1, 0]


def test_nothing_crosses_the_border_between_requests():
    sums = locality_sums(routes_from([(0, 1), (0, 1)], [(0, 1), (2, 3)]), blocks=(2, 5))
    assert sums.overlap.tolist() == [[2], [0]]
    assert sums.blocks[2].tolist() == [1, 1]
    assert sums.unions[2].tolist() == [[2], [4]]
    assert sums.blocks[5].tolist() == [0, 0]
    assert sums.reuse.tolist() == [[2, 2, 0], [4, 0, 0]]


def test_uses_at_distance_one_are_the_overlap_when_every_decoded_token_has_a_predecessor():
    rng = np.random.default_rng(5)
    requests = [[tuple(rng.permutation(16)[:4]) for _ in range(30)] for _ in range(3)]
    sums = locality_sums(routes_from(*requests, num_experts=16, prompt=1))
    assert sums.reuse[:, 1].tolist() == sums.overlap[:, 0].tolist()
    assert sums.reuse.sum(axis=1).tolist() == (sums.tokens * 4).tolist()


def test_a_union_of_one_token_repeated_is_its_top_k():
    sums = locality_sums(routes_from([(0, 1, 2)] * 6))
    assert all(sums.unions[block].item() == pytest.approx(3 * sums.blocks[block].item()) for block in (2, 3, 4, 5))
