import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.geometry import FLASH_NEXT, Geometry
from workbench.model.ngram import NgramContext, layer_row_ids, row_ids

EOS = FLASH_NEXT.eos_token_id


@pytest.fixture(scope="module")
def mini_geometry(mini_folder):
    return Geometry.from_folder(mini_folder)


def reference_ids(torch, geometry, position, tokens):
    """Row ids by transformers' class; its table holds the row's own number, so nothing is looked up twice."""
    from transformers import Qwen4ExpTextConfig
    from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpTextNGramEmbedding

    names = ("vocab_size", "ngram_size", "heads_per_ngram", "ngram_vocab_size_base", "seed", "make_ngram_vocab_size_divisible_by")
    config = Qwen4ExpTextConfig(**{name: getattr(geometry, name) for name in names}, eos_token_id=geometry.eos_token_id)
    module = Qwen4ExpTextNGramEmbedding(config, geometry.ple_heads, 0, position)
    numbers = torch.arange(module.ngram_embedding.num_embeddings, dtype=torch.float64)[:, None]
    module.ngram_embedding.weight = torch.nn.Parameter(numbers, requires_grad=False)
    return module(torch.from_numpy(tokens)[None], None)[0].numpy().astype(np.int64)


@pytest.mark.parametrize("position", [0, 1])
def test_equals_transformers_with_eos_in_the_text(torch, odd, position):
    geometry, rng = odd[0].geometry, np.random.default_rng(position)
    tokens = rng.integers(0, geometry.vocab_size, 200)
    tokens[[0, 5, 6, 9, 11, 198]] = geometry.eos_token_id
    expected = reference_ids(torch, geometry, position, tokens)
    np.testing.assert_array_equal(layer_row_ids(geometry, position, tokens, NgramContext(geometry)), expected)


def test_geometry_equals_the_integers_stored_in_the_checkpoint(mini_geometry, mini_folder):
    stored = mx.load(str(mini_folder / "model.safetensors"))
    base = "model.layers.1.ple.ple_embedding."
    assert stored[base + "layer_multipliers"].tolist() == list(mini_geometry.ple_multipliers(0))
    assert stored[base + "ngram_heads_vocab_sizes"].tolist() == list(mini_geometry.ple_head_sizes(0))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, FLASH_NEXT.vocab_size - 1) | st.just(EOS), min_size=1, max_size=20),
    st.lists(st.integers(1, 4), min_size=1, max_size=5),
)
def test_any_split_into_calls_gives_the_same_rows(tokens, lengths):
    tokens = np.array(tokens, np.int64)
    whole = layer_row_ids(FLASH_NEXT, 0, tokens, NgramContext(FLASH_NEXT))
    context, parts, start = NgramContext(FLASH_NEXT), [], 0
    while start < len(tokens):
        part = tokens[start : start + lengths[len(parts) % len(lengths)]]
        parts.append(layer_row_ids(FLASH_NEXT, 0, part, context))
        context, start = context.after(part), start + len(part)
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_rows_stay_within_their_head():
    tokens = np.random.default_rng(0).integers(0, FLASH_NEXT.vocab_size, 1000)
    ids = layer_row_ids(FLASH_NEXT, 0, tokens, NgramContext(FLASH_NEXT))
    sizes = np.array(FLASH_NEXT.ple_head_sizes(0))
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    assert ids.shape == (1000, 16)
    assert ((ids >= starts) & (ids < starts + sizes)).all()


def test_every_layer_with_a_table_has_its_rows():
    tokens, context = np.arange(5), NgramContext(FLASH_NEXT)
    ids = row_ids(FLASH_NEXT, tokens, context)
    assert list(ids) == list(FLASH_NEXT.ple_layers)
    for position, layer in enumerate(ids):
        np.testing.assert_array_equal(ids[layer], layer_row_ids(FLASH_NEXT, position, tokens, context))


def test_what_lies_before_an_eos_changes_nothing():
    after = [11, 12, 13]
    tokens = [np.array([*before, EOS, *after]) for before in ((1, 2), (3, 4))]
    first, second = (layer_row_ids(FLASH_NEXT, 0, each, NgramContext(FLASH_NEXT)) for each in tokens)
    np.testing.assert_array_equal(first[3:], second[3:])
    assert (first[2] != second[2]).any()
