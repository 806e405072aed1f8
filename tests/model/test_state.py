"""Transactions over the whole state, digests, batch invariance, and caches that do not copy themselves."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workbench.runtime.forward import draft, forward

VOCAB = 3000


def feed(loaded, state, tokens):
    model, experts, rows = loaded
    return np.array(forward(model, experts, rows, state, np.asarray(tokens)))


def fed(loaded, tokens):
    """A state that saw `tokens` one by one, without any transaction."""
    state = loaded[0].new_state()
    for token in tokens:
        feed(loaded, state, [token])
    return state


@pytest.fixture(scope="module")
def some_tokens():
    tokens = np.random.default_rng(3).integers(0, VOCAB, 110)
    tokens[[30, 31, 75]] = 7
    return tokens


@pytest.fixture(scope="module")
def after_prompt(odd, some_tokens, decode_all):
    """Feeds a prompt of 60 tokens, then 32 in blocks: across the start of sparse attention, 71 tokens in."""

    def run(lengths):
        state = odd[0].new_state()
        decode_all(odd, state, some_tokens[:60], [60])
        return decode_all(odd, state, some_tokens[60:92], lengths), state.digest()

    return run


@pytest.fixture(scope="module")
def singles(after_prompt):
    return after_prompt([1])


@pytest.mark.parametrize("length", [2, 3, 5, 8])
def test_blocks_up_to_eight_have_the_bits_of_single_tokens(after_prompt, singles, length):
    logits, digest = after_prompt([length])
    np.testing.assert_array_equal(logits, singles[0])
    assert digest == singles[1]


def test_long_tiles_agree_with_single_tokens(after_prompt, singles):
    tiled, _ = after_prompt([20, 9])
    assert np.abs(tiled - singles[0]).max() <= 1e-5 * (tiled.max() - tiled.min())


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(1, 8), st.sampled_from(["plain", "commit", "abort"])), min_size=1, max_size=5))
def test_only_committed_tokens_are_ever_seen(odd, steps):
    rng = np.random.default_rng(len(steps))
    state, kept = odd[0].new_state(), []
    for length, ending in steps:
        tokens = rng.integers(0, VOCAB, length).tolist()
        if ending != "plain":
            state.begin()
        feed(odd, state, tokens)
        if ending == "abort":
            state.abort()
            continue
        if ending == "commit":
            state.commit()
        kept += tokens
    assert state.digest() == fed(odd, kept).digest()
    assert state.position == len(kept)


def test_abort_restores_everything_past_the_budget(odd, some_tokens, decode_all):
    state = odd[0].new_state()
    decode_all(odd, state, some_tokens[:79], [79])
    before = state.digest()
    state.begin()
    decode_all(odd, state, some_tokens[79:100], [8])
    draft_over(odd, state, some_tokens[100])
    assert state.digest() != before
    state.abort()
    assert state.digest() == before


def draft_over(loaded, state, token):
    model, experts, _ = loaded
    return np.array(draft(model, experts, state, state.arrays["wide"], np.array([token])))


def test_the_mtp_cache_is_part_of_the_transaction(odd):
    state = fed(odd, [5])
    before = state.digest()
    state.begin()
    draft_over(odd, state, 9)
    assert state.digest() != before
    state.abort()
    assert state.digest() == before


def test_every_part_of_the_state_changes_the_digest(odd):
    state = fed(odd, range(20))
    seen = {state.digest()}
    for name, array in list(state.arrays.items()):
        state.arrays[name] = array + 1
        seen.add(state.digest())
        state.arrays[name] = array
    state.position += 1
    seen.add(state.digest())
    state.position -= 1
    context = state.context
    state.context = context.after(np.array([3]))
    seen.add(state.digest())
    state.context = context
    for cache in state.caches.values():
        cache.length = max(cache.length - 1, 0)
        seen.add(state.digest())
    trunk_caches = len(state.caches) - 1
    assert len(seen) == 1 + len(state.arrays) + 2 + trunk_caches


def test_transactions_do_not_nest_and_need_a_begin(odd):
    state = odd[0].new_state()
    for end in (state.commit, state.abort):
        with pytest.raises(ValueError, match="no transaction is open"):
            end()
    state.begin()
    with pytest.raises(ValueError, match="already open"):
        state.begin()


def test_a_token_does_not_copy_the_cache(odd):
    state = odd[0].new_state()
    feed(odd, state, range(40))
    cache = state.caches[3]
    for transaction in (False, True):
        address = buffer_address(cache)
        for token in range(5):
            if transaction:
                state.begin()
            feed(odd, state, [token])
            if transaction:
                state.commit()
            assert buffer_address(cache) == address


def buffer_address(cache):
    mx.eval(cache._kv)
    return np.array(cache._kv, copy=False).__array_interface__["data"][0]


def test_a_long_prefill_needs_no_square_memory(odd):
    model = odd[0]
    tokens = np.random.default_rng(0).integers(0, VOCAB, 2048)
    layer, state = model.layers[3], model.new_state()
    x = model.embed(mx.array(tokens))
    mx.eval(x)
    mx.reset_peak_memory()
    start = mx.get_active_memory()
    mx.eval(layer.attend(x, state))
    square = 4 * len(tokens) ** 2 * model.geometry.num_attention_heads
    print(f"{(mx.get_peak_memory() - start) / square:.2f} of the score matrix")
    assert mx.get_peak_memory() - start < square
