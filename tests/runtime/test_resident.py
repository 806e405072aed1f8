"""One set of weights in every layout that checkpoints come in."""

import json
import os
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"

import mlx.core as mx
import numpy as np
import pytest

from workbench.errors import BadInput
from workbench.runtime.resident import load_resident, run_forward

CONFIG = {
    "model_type": "qwen4_exp_text",
    "vocab_size": 300,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "hc_count": 2,
    "hc_lowrank": 8,
    "ple_layer_ids": [1],
    "ple_embed_dim": 64,
    "ple_conv_kernel_size": 4,
    "ngram_size": 3,
    "heads_per_ngram": 2,
    "ngram_vocab_size_base": 100,
    "split_ngram_parts": 4,
    "make_ngram_vocab_size_divisible_by": 8,
    "seed": 1,
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 32,
    "indexer_budget": 16,
    "indexer_compress_ratio": 4,
    "layer_types": ["linear_attention", "indexed_attention"],
    "eos_token_id": 0,
    "pad_token_id": 0,
    "mtp_num_hidden_layers": 1,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [3, 3, 2]},
    "quantization": {"bits": 4, "group_size": 64, "mode": "affine"},
}
TOKENS = np.random.default_rng(0).integers(0, 300, 30)


@pytest.fixture(scope="module")
def write_checkpoint():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from predictors.reference import write_random_checkpoint
    return lambda folder, **settings: write_random_checkpoint(folder, CONFIG, **settings)


def run(folder):
    """Logits and state digest after some tokens."""
    model, experts, rows = load_resident(folder)
    state = model.new_state()
    return np.array(run_forward(model, state, TOKENS, experts, rows)), state.digest()


@pytest.fixture(scope="module")
def fused(write_checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fused")
    write_checkpoint(folder, layout="fused")
    return folder


@pytest.mark.parametrize(
    "settings",
    [
        {"layout": "single"},
        {"layout": "fused", "num_shards": 3},
        {"layout": "fused", "split_tables": True},
        {"layout": "single", "num_shards": 2, "split_tables": True},
    ],
    ids=str,
)
def test_layouts_of_the_same_bf16_weights_give_the_same_bits(write_checkpoint, fused, tmp_path, settings):
    write_checkpoint(tmp_path, **settings)
    logits, digest = run(tmp_path)
    expected_logits, expected_digest = run(fused)
    np.testing.assert_array_equal(logits, expected_logits)
    assert digest == expected_digest


def test_quantised_stacks_equal_what_quantising_gives(fused, tmp_path):
    """The fused weights, put through mx.quantize beforehand and stored as MLX checkpoints store them."""
    tensors = mx.load(str(fused / "model.safetensors"))
    stored = {name: array for name, array in tensors.items() if ".mlp.experts." not in name}
    for name in set(tensors) - set(stored):
        base, _, kind = name.partition("experts.")
        halves = mx.split(tensors[name], 2, axis=1)
        matrices = {"gate_proj": halves[0], "up_proj": halves[1]} if kind == "gate_up_proj" else {kind: tensors[name]}
        for projection, matrix in matrices.items():
            parts = mx.quantize(matrix, group_size=64, bits=4)
            stored |= {f"{base}switch_mlp.{projection}.{part}": a for part, a in zip(("weight", "scales", "biases"), parts)}
    mx.save_safetensors(str(tmp_path / "model.safetensors"), stored)
    (tmp_path / "config.json").write_text((fused / "config.json").read_text())
    np.testing.assert_array_equal(run(tmp_path)[0], run(fused)[0])


def test_names_of_the_multimodal_checkpoint_are_the_same_model(fused, tmp_path):
    tensors = mx.load(str(fused / "model.safetensors"))
    renamed = {name.replace("model.", "model.language_model.", 1): array for name, array in tensors.items()}
    mx.save_safetensors(str(tmp_path / "model.safetensors"), renamed | {"model.visual.patch.weight": mx.zeros((2, 2))})
    (tmp_path / "config.json").write_text(json.dumps({"text_config": CONFIG}))
    np.testing.assert_array_equal(run(tmp_path)[0], run(fused)[0])


def test_the_bundled_model_loads_with_its_mtp_head():
    folder = os.path.join(os.path.dirname(__file__), "..", "..", "data", "qwen4exp-mini-4bit")
    assert load_resident(folder)[0].mtp is not None


def without(fused, tmp_path, part):
    tensors = mx.load(str(fused / "model.safetensors"))
    mx.save_safetensors(str(tmp_path / "model.safetensors"), {name: a for name, a in tensors.items() if part not in name})
    (tmp_path / "config.json").write_text((fused / "config.json").read_text())
    return tmp_path


@pytest.mark.parametrize("part", ["layers.0.mlp.experts", "ngram_embedding", "layers.1.self_attn.o_proj", "lm_head"])
def test_a_missing_tensor_is_named(fused, tmp_path, part):
    with pytest.raises(BadInput, match=part):
        load_resident(without(fused, tmp_path, part))


def test_a_checkpoint_without_its_mtp_head_is_a_model_without_one(fused, tmp_path):
    folder = without(fused, tmp_path, "mtp.")
    assert load_resident(folder)[0].mtp is None
    np.testing.assert_array_equal(run(folder)[0], run(fused)[0])


def test_missing_parts_and_shards_are_named(write_checkpoint, tmp_path):
    write_checkpoint(tmp_path / "split", layout="fused", split_tables=True)
    (tmp_path / "cut").mkdir()
    with pytest.raises(BadInput, match=r"layer 0 has parts \[0, 1, 3\]"):
        load_resident(without(tmp_path / "split", tmp_path / "cut", "shard_2"))
    write_checkpoint(tmp_path / "sharded", layout="fused", num_shards=2)
    next((tmp_path / "sharded").glob("*-00002-of-*")).unlink()
    with pytest.raises(BadInput, match="lacks model-00002-of-00002"):
        load_resident(tmp_path / "sharded")
