"""Transactions over the whole state, digests, batch invariance, and caches that do not copy themselves."""

import copy
import weakref
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workbench.model.state import LONGEST_BLOCK
from workbench.runtime.forward import draft
from workbench.runtime.resident import run_forward, run_stages

VOCAB = 3000


def feed(loaded, state, tokens):
    model, experts, rows = loaded
    return np.array(run_forward(model, state, np.asarray(tokens), experts, rows))


def fed(loaded, tokens, *, follow_mtp=False):
    """A state that saw `tokens` one by one, without any transaction."""
    state = loaded[0].new_state(follow_mtp=follow_mtp)
    for token in tokens:
        feed(loaded, state, [token])
    return state


def digests(state):
    return state.digest(), state.draft_digest()


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


ENDINGS = st.sampled_from(["plain", "abort"]) | st.integers(0, LONGEST_BLOCK)
"""Of a pass: outside a transaction, aborted, or a number of tokens committed."""


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(1, LONGEST_BLOCK), ENDINGS), min_size=1, max_size=6), st.booleans())
def test_only_committed_tokens_are_ever_seen(odd, steps, follow_mtp):
    rng = np.random.default_rng(len(steps))
    state, kept = odd[0].new_state(follow_mtp=follow_mtp), []
    for length, ending in steps:
        tokens = rng.integers(0, VOCAB, length).tolist()
        if ending != "plain":
            state.begin()
        feed(odd, state, tokens)
        if ending == "abort":
            state.abort()
            tokens = []
        elif ending != "plain":
            tokens = tokens[:ending]
            state.commit(len(tokens))
        kept += tokens
    assert digests(state) == digests(fed(odd, kept, follow_mtp=follow_mtp))
    assert state.position == len(kept)


def test_abort_restores_everything_past_the_budget(odd, some_tokens, decode_all):
    state = odd[0].new_state()
    decode_all(odd, state, some_tokens[:79], [79])
    before = state.digest()
    state.begin()
    decode_all(odd, state, some_tokens[79:100], [8])
    assert state.digest() != before
    state.abort()
    assert state.digest() == before


def draft_over(loaded, state, token):
    model, experts, _ = loaded
    return np.array(run_stages(draft(model, state, state.arrays["wide"], np.array([token])), experts, {}))


def test_the_mtp_cache_is_part_of_the_transaction_and_no_part_of_the_digest(odd):
    state = fed(odd, [5])
    before = state.digest(), state.draft_digest()
    state.begin()
    draft_over(odd, state, 9)
    assert state.digest() == before[0], "what the trunk reads is the same with and without drafts"
    assert state.draft_digest() != before[1]
    state.abort()
    assert (state.digest(), state.draft_digest()) == before


# ---- prefixes of blocks ------------------------------------------------------------------------------------------------

LENGTHS = (2, 5, LONGEST_BLOCK)
STARTS = (0, 3, 29, 61, 68, 74, 87)
"""At the start, before the end of an index block, before an EOS, across the indexer budget (71) and past it."""
NUM_FURTHER = 2


@dataclass
class SingleTokens:
    """A sequence fed one by one."""

    follow_mtp: bool
    states: dict = field(default_factory=dict)
    """Copies by number of tokens, for `STARTS`."""
    digests: list = field(default_factory=list)
    """By number of tokens."""
    logits: list = field(default_factory=list)
    """By token."""


@pytest.fixture(scope="module", params=[False, True], ids=["trunk", "follow_mtp"])
def single_tokens(odd, some_tokens, request):
    state, found = odd[0].new_state(follow_mtp=request.param), SingleTokens(request.param)
    for token in some_tokens[: max(STARTS) + max(LENGTHS) + NUM_FURTHER]:
        if state.position in STARTS:
            # deep: a shallow copy would share the cache's buffers and see every later write
            found.states[state.position] = copy.deepcopy(state)
        found.digests.append(digests(state))
        found.logits.append(feed(odd, state, [token]))
    found.digests.append(digests(state))
    return found


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("length", LENGTHS)
def test_any_prefix_of_a_block_has_the_bits_of_its_tokens_alone(odd, some_tokens, single_tokens, length, start):
    # the head's cache is a cache like the others: every second prefix of it
    for kept in range(0, length + 1, 2 if single_tokens.follow_mtp else 1):
        assert_prefix_is_as_alone(odd, some_tokens, single_tokens, length, kept, start)


def assert_prefix_is_as_alone(odd, some_tokens, single_tokens, length, kept, start):
    state, stop = copy.deepcopy(single_tokens.states[start]), start + kept
    state.begin()
    # rejected tokens are others than those that come instead
    logits = feed(odd, state, np.concatenate([some_tokens[start:stop], np.full(length - kept, 11)]))
    state.commit(kept)
    assert digests(state) == single_tokens.digests[stop]
    further = [feed(odd, state, [token]) for token in some_tokens[stop : stop + NUM_FURTHER]]
    expected = np.concatenate(single_tokens.logits[start : stop + NUM_FURTHER])
    np.testing.assert_array_equal(np.concatenate([logits[:kept], *further]), expected)
    assert digests(state) == single_tokens.digests[stop + NUM_FURTHER]


@pytest.mark.parametrize("length", [1, 3, 4, 8])
@pytest.mark.parametrize("follow_mtp", [False, True])
def test_eight_tokens_have_one_digest_in_passes_of_any_length(odd, some_tokens, length, follow_mtp):
    state = odd[0].new_state(follow_mtp=follow_mtp)
    for start in range(0, 8, length):
        state.begin()
        feed(odd, state, some_tokens[start : min(start + length, 8)])
        state.commit()
    assert digests(state) == digests(fed(odd, some_tokens[:8], follow_mtp=follow_mtp))


@pytest.mark.parametrize(
    ("lengths", "num_tokens"),
    [([LONGEST_BLOCK + 1], 3), ([2, 2], 3), ([1, 4], 2), ([5], 6), ([5], -1)],
    ids=["tile", "two blocks", "token and block", "too many", "negative"],
)
def test_tokens_that_are_no_prefix_of_one_block_are_refused(odd, some_tokens, lengths, num_tokens):
    state = odd[0].new_state()
    state.begin()
    for length in lengths:
        feed(odd, state, some_tokens[:length])
    with pytest.raises(ValueError, match="can't be committed"):
        state.commit(num_tokens)
    state.commit(sum(lengths))
    assert state.position == sum(lengths)


def test_a_prefix_needs_the_logits_of_every_token(odd, some_tokens):
    model, experts, rows = odd
    state = model.new_state()
    state.begin()
    run_forward(model, state, some_tokens[:5], experts, rows, num_logits=1)
    with pytest.raises(ValueError, match="with the logits of every token"):
        state.commit(4)
    state.abort()
    assert state.digest() == model.new_state().digest()


@pytest.mark.parametrize("num_tokens", [0, 2, 5, None])
def test_nothing_of_a_block_is_kept_after_its_end(odd, some_tokens, num_tokens):
    state = fed(odd, some_tokens[:3], follow_mtp=True)
    state.begin()
    feed(odd, state, some_tokens[3:8])
    old = {id(array) for array in state._open.arrays.values()}
    kept = [array for inputs in state._open.inputs.values() for array in parts(inputs) if id(array) not in old]
    # of six delta nets: history, keys, values, decay, beta; of two n-gram injections: history; rows of residual and logits
    assert len(kept) == 6 * (1 + 4) + 2 * 1 + 2
    references = [weakref.ref(array) for array in kept]
    del kept
    state.commit(num_tokens)
    assert not state.is_open
    assert [reference() for reference in references] == [None] * len(references)


def parts(inputs):
    return [value for name in inputs.__slots__ if isinstance(value := getattr(inputs, name), mx.array)]


@pytest.mark.parametrize("num_tokens", [2, 4, None])
def test_a_commit_computes_the_state_and_so_frees_the_old_one(odd, some_tokens, num_tokens):
    start = mx.get_active_memory()
    state = fed(odd, some_tokens[:3])
    mx.eval(list(state.arrays.values()))
    before = mx.get_active_memory() - start
    state.begin()
    feed(odd, state, some_tokens[3:8])
    state.commit(num_tokens)
    mx.synchronize()
    recurrent = sum(array.nbytes for name, array in state.arrays.items() if name.endswith("recurrent"))
    # views of a few kilobytes may stay
    assert mx.get_active_memory() - start - before < recurrent / 2


@pytest.mark.parametrize("length", [1, LONGEST_BLOCK + 1])
def test_a_single_token_and_a_tile_keep_nothing(odd, some_tokens, length):
    state = odd[0].new_state()
    state.begin()
    feed(odd, state, some_tokens[:length])
    assert not state._open.inputs


# ---- the MTP head's cache ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [[1] * 20, [8, 1, 5, 3, 1], [40, 9, 1]])
def test_the_mtp_cache_follows_as_if_draft_steps_had_filled_it(odd, some_tokens, lengths, monkeypatch):
    model, experts, _ = odd
    passes, follow = [], model.follow
    monkeypatch.setattr(model, "follow", lambda tokens, wide, state: passes.append(wide) or follow(tokens, wide, state))
    followed, drafted, start = model.new_state(follow_mtp=True), model.new_state(), 0
    for length in lengths:
        feed(odd, followed, some_tokens[start : start + length])
        start += length
        assert followed.caches[model.mtp.layer.index].length == start - 1
    wide, start = mx.concatenate(passes), 0
    for length in (lengths[0] - 1, *lengths[1:]):
        if length:
            pairs = slice(start, start + length), some_tokens[start + 1 : start + 1 + length]
            run_stages(draft(model, drafted, wide[pairs[0]], pairs[1]), experts, {})
        start += length
    assert followed.draft_digest() == drafted.draft_digest()
    drafted.arrays["wide"] = followed.arrays["wide"]
    np.testing.assert_array_equal(draft_over(odd, followed, 5), draft_over(odd, drafted, 5))


def test_draft_steps_leave_no_pairs_behind_a_pass(odd, some_tokens):
    state = fed(odd, some_tokens[:7], follow_mtp=True)
    draft_over(odd, state, 9)
    draft_over(odd, state, 10)
    feed(odd, state, some_tokens[7:8])
    assert digests(state) == digests(fed(odd, some_tokens[:8], follow_mtp=True))


def test_only_an_mtp_head_can_follow(odd):
    headless = copy.copy(odd[0])
    headless.mtp = None
    with pytest.raises(ValueError, match="no MTP head"):
        headless.new_state(follow_mtp=True)
    with pytest.raises(ValueError, match="no MTP head"):
        headless.new_state().draft_digest()


# ---- digests, transactions, memory -------------------------------------------------------------------------------------


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
    state = odd[0].new_state(follow_mtp=True)
    feed(odd, state, range(40))
    caches = [state.caches[layer] for layer in (3, odd[0].mtp.layer.index)]
    for transaction in (False, True):
        addresses = [buffer_address(cache) for cache in caches]
        for token in range(5):
            if transaction:
                state.begin()
            feed(odd, state, [token])
            if transaction:
                state.commit()
            assert [buffer_address(cache) for cache in caches] == addresses


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
