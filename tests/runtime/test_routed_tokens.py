import mlx.core as mx
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from workbench.runtime.routed_tokens import RoutedTokens

WIDTH = 3


def block_of(chosen):
    hidden = np.arange(len(chosen) * WIDTH, dtype=np.float32).reshape(len(chosen), WIDTH)
    return RoutedTokens(mx.array(hidden), np.array(chosen)), hidden


def outputs_of(pairs, shift=0.0):
    """A row for each pair that says which pair it is."""
    return mx.array(np.repeat(np.array(pairs, dtype=np.float32)[:, None] + shift, WIDTH, axis=1))


@st.composite
def choices(draw):
    """Distinct experts for each of a few tokens."""
    tokens, top_k = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    return [draw(st.permutations(range(6)))[:top_k] for _ in range(tokens)]


@given(choices(), st.randoms(use_true_random=False))
def test_results_lie_in_rank_order_whatever_order_they_were_put_in(chosen, random):
    block, _ = block_of(chosen)
    keys = block.keys[:]
    random.shuffle(keys)
    while keys:
        some = [keys.pop() for _ in range(random.randint(1, len(keys)))]
        block.put(block.pairs(some), [outputs_of(block.pairs(some))])
    tokens, top_k = len(chosen), len(chosen[0])
    wanted = np.arange(tokens * top_k).reshape(tokens, top_k, 1).repeat(WIDTH, axis=2)
    np.testing.assert_array_equal(np.array(block.result()), wanted)


@given(choices())
def test_a_pair_belongs_to_the_token_that_chose_and_to_the_key_it_chose(chosen):
    block, hidden = block_of(chosen)
    for key in block.keys:
        pairs = block.pairs([key])
        tokens, ranks = np.divmod(pairs, len(chosen[0]))
        assert [chosen[token][rank] for token, rank in zip(tokens, ranks)] == [key] * len(pairs)
        rows = np.array(block.rows(pairs))
        np.testing.assert_array_equal(rows, hidden if len(chosen) == 1 else hidden[tokens])


def test_keys_come_in_the_order_of_first_use_and_the_whole_block_is_told_from_a_part():
    block, _ = block_of([[5, 2], [2, 4]])
    assert block.keys == [5, 2, 4]
    assert block.is_whole([2, 4, 5])
    assert not block.is_whole([2, 4])


def test_what_is_put_later_replaces_what_was_there():
    block, _ = block_of([[5, 2, 4]])
    block.put_whole(outputs_of([0, 1, 2]))
    block.put(block.pairs([2]), [outputs_of([1], shift=10)])
    np.testing.assert_array_equal(np.array(block.result())[0, :, 0], [0, 11, 2])


def test_a_whole_result_is_not_moved():
    block, _ = block_of([[5, 2], [2, 4]])
    whole = outputs_of(range(4))
    block.put_whole(whole)
    assert block.pieces == [whole]
    assert block.result().shape == (2, 2, WIDTH)
