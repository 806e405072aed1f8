import numpy as np
import pytest

from workbench.simulate.passes import blocks

KEYS = np.arange(40).reshape(10, 2, 2)
"""Ten tokens, two layers, top-2, no record twice."""


def test_without_drafts_a_pass_is_a_token():
    made = list(blocks(KEYS, drafts=0, committed=1.0))
    assert [(each.position, each.num_tokens) for each in made] == [(start, 1) for start in range(10)]
    assert made[0].keys == ((0, 1), (2, 3))


def test_a_block_needs_its_union_and_commits_its_part():
    made = list(blocks(KEYS, drafts=2, committed=1.5))
    assert [(each.position, each.num_tokens) for each in made] == [(0, 1), (1, 2), (3, 1), (4, 2), (6, 1), (7, 2)]
    assert made[0].keys == ((0, 1, 4, 5, 8, 9), (2, 3, 6, 7, 10, 11))
    repeated = np.zeros((4, 2, 2), np.int64)
    assert next(blocks(repeated, drafts=2, committed=2.0)).keys == ((0,), (0,))


@pytest.mark.parametrize("committed", [1.0, 1.86, 2.57])
def test_committed_tokens_average_out(committed):
    made = list(blocks(np.zeros((300, 1, 1), np.int64), drafts=2, committed=committed))
    assert sum(each.num_tokens for each in made) / len(made) == pytest.approx(committed, rel=0.02)
