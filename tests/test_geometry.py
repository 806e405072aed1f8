"""Golden numbers of Flash-Next, and the mini geometry against every tensor of its checkpoint."""

import json
import re
from collections import Counter
from math import prod

import pytest
from safetensors import safe_open

from workbench.bounds import ideal_routed_bytes_per_token
from workbench.errors import BadInput
from workbench.geometry import FLASH_NEXT, INDEXED_ATTENTION, Codec, Geometry, slice_config
from workbench.paths import bundled_model
from workbench.units import GB, GIB, MIB

SLICE = Geometry.from_config(slice_config())


@pytest.fixture(scope="module")
def mini():
    return Geometry.from_folder(bundled_model())


@pytest.fixture(scope="module")
def checkpoint():
    with safe_open(bundled_model() / "model.safetensors", "numpy") as file:
        yield file


def mini_config(**changes):
    return json.loads((bundled_model() / "config.json").read_text()) | changes


def test_flash_next_shapes():
    assert [i for i, kind in enumerate(FLASH_NEXT.layer_types) if kind == INDEXED_ATTENTION] == list(range(3, 48, 4))
    assert (FLASH_NEXT.hidden_size, FLASH_NEXT.moe_intermediate_size, FLASH_NEXT.num_experts) == (2560, 640, 512)
    assert FLASH_NEXT.ple_layers == (1,)


def test_flash_next_records():
    assert FLASH_NEXT.expert_parameters == 4_915_200
    assert FLASH_NEXT.record_bytes == 2_764_800
    assert FLASH_NEXT.component_bytes("gate") == FLASH_NEXT.component_bytes("down") == 921_600
    assert FLASH_NEXT.demand_bytes_per_token == 1_327_104_000


def test_flash_next_routed_uses():
    assert FLASH_NEXT.routed_parameter_uses_per_token == 2_359_296_000
    assert ideal_routed_bytes_per_token(FLASH_NEXT, 2) == 562.5 * MIB
    assert ideal_routed_bytes_per_token(FLASH_NEXT, 4) / GIB == pytest.approx(1.0986, abs=5e-5)


def test_flash_next_ngram_rows():
    assert (FLASH_NEXT.ple_heads, FLASH_NEXT.ple_row_width, FLASH_NEXT.ple_num_rows(0)) == (16, 160, 320_001_536)


def test_flash_next_state():
    assert FLASH_NEXT.gdn_state_bytes == 113_246_208
    assert FLASH_NEXT.kv_bytes_per_token() == 27_648


def test_slice_keeps_records_and_rows_of_flash_next():
    assert (SLICE.record_bytes, SLICE.ple_row_width) == (FLASH_NEXT.record_bytes, FLASH_NEXT.ple_row_width)
    assert SLICE.num_expert_layers * SLICE.num_experts * SLICE.record_bytes / GB == pytest.approx(5.66, abs=5e-3)
    assert SLICE.ple_num_rows(0) == 2_001_664
    assert SLICE.layer_types[3] == INDEXED_ATTENTION
    assert SLICE.vocab_size == 8192
    with pytest.raises(BadInput, match="at least 2 layers"):
        slice_config(1)


def test_mini_records(mini):
    assert (mini.num_hidden_layers, mini.num_experts, mini.num_experts_per_tok, mini.record_bytes) == (8, 128, 10, 27_648)


OWNERS = [
    ("routed_experts", r"\.switch_mlp\."),
    ("ple_tables", r"\.ngram_embedding\.weight$"),
    ("buffers", r"\.ple_embedding\."),
    ("ple_projections", r"\.ple\."),
    ("hyper_connections", r"hyper_connection"),
    ("shared_experts", r"\.shared_expert"),
    ("routers", r"\.mlp\.gate\."),
    ("gdn", r"\.linear_attn\."),
    ("qsa", r"\.self_attn\."),
    ("embedding", r"embed_tokens"),
    ("head", r"lm_head"),
    ("mtp_projections", r"^mtp\."),
]


def owner_of(name):
    return next(owner for owner, pattern in OWNERS if re.search(pattern, name))


def test_mini_parameters_by_owner_are_those_of_its_checkpoint(mini, checkpoint):
    found = Counter()
    for name in checkpoint.keys():  # noqa: SIM118 (not a mapping)
        tensor = checkpoint.get_slice(name)
        if not name.endswith((".scales", ".biases")):
            # eight 4-bit weights a word
            found[owner_of(name)] += prod(tensor.get_shape()) * (8 if tensor.get_dtype() == "U32" else 1)
    del found["buffers"]
    assert mini.parameters_by_owner() == dict(found)


def test_mini_records_are_the_bytes_of_its_checkpoint(mini, checkpoint):
    stored = Counter()
    for name in checkpoint.keys():  # noqa: SIM118
        if match := re.search(r"layers\.0\.mlp\.switch_mlp\.(gate|up|down)_proj", name):
            tensor = checkpoint.get_slice(name)
            stored[match.group(1)] += prod(tensor.get_shape()[1:]) * {"U32": 4, "BF16": 2}[tensor.get_dtype()]
    # one trunk layer and the MTP layer match
    assert {component: mini.component_bytes(component) * 2 for component in ("gate", "up", "down")} == dict(stored)


def test_mini_hash_constants_are_the_integer_buffers_of_its_checkpoint(mini, checkpoint):
    prefix = "model.layers.1.ple.ple_embedding."
    sizes = checkpoint.get_tensor(prefix + "ngram_heads_vocab_sizes").tolist()
    offsets = checkpoint.get_tensor(prefix + "ngram_heads_offsets").tolist()
    assert list(mini.ple_head_sizes(0)) == sizes
    assert [sum(sizes[:i]) for i in range(len(sizes))] == offsets
    assert list(mini.ple_multipliers(0)) == checkpoint.get_tensor(prefix + "layer_multipliers").tolist()
    assert mini.ple_num_rows(0) == checkpoint.get_slice(prefix + "ngram_embedding.weight").get_shape()[0]


def test_multipliers_are_odd_and_do_not_survive_a_float():
    multipliers = [m for position in range(3) for m in FLASH_NEXT.ple_multipliers(position)]
    assert all(m % 2 and 0 < m < 2**63 for m in multipliers)
    assert len(set(multipliers)) == len(multipliers)
    large = Geometry.from_config(mini_config(vocab_size=2)).ple_multipliers(0)
    assert any(int(float(m)) != m for m in large)


def test_a_second_table_goes_on_with_the_primes_of_the_first():
    two = Geometry.from_config(mini_config(ple_layer_ids=[2, 5]))
    assert two.ple_layers == (1, 4)
    assert two.ple_head_sizes(1)[0] > two.ple_head_sizes(0)[-1]
    assert two.ple_multipliers(0) != two.ple_multipliers(1)


def test_official_layer_names_and_nesting_are_understood(mini):
    names = {"linear_attention": "linear_attention", INDEXED_ATTENTION: "full_attention"}
    nested = {"text_config": mini_config(layer_types=[names[kind] for kind in mini.layer_types])}
    assert Geometry.from_config(nested) == mini


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ple_layer_ids": [0]}, "count from 1"),
        ({"num_experts_per_tok": 129}, "top-129 of 128"),
        ({"layer_types": ["linear_attention"]}, "names 1 layers"),
        ({"layer_types": ["mamba"] * 8}, "unknown layer type 'mamba'"),
        ({"indexer_budget": 130}, "multiple of indexer_compress_ratio"),
        ({"quantization": {"bits": 7, "group_size": 64}}, "bits 2..8"),
        ({"hidden_size": None}, "hidden_size"),
    ],
)
def test_impossible_configs_are_refused(changes, message):
    with pytest.raises(BadInput, match=message):
        Geometry.from_config(mini_config(**changes))


def test_folders_without_a_config_are_refused(tmp_path):
    with pytest.raises(BadInput, match=r"no config\.json"):
        Geometry.from_folder(tmp_path)
    for content, message in (("{", "is not JSON"), ("[]", "JSON object")):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(BadInput, match=message):
            Geometry.from_folder(tmp_path)


def test_quantised_matrix_bytes():
    assert Codec(bits=4, group_size=64).matrix_bytes(640, 2560) == 640 * 2560 // 2 + 4 * 640 * 2560 // 64
    assert Codec(bits=8, group_size=32).matrix_bytes(1, 32) == 36
