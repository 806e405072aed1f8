"""A small model's checkpoint in every layout, its stores, and the real command line with an eye on memory."""

import json
import shutil
import tracemalloc
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from workbench.geometry import Geometry
from workbench.stores.build import BuildSettings, StoreBuilder
from workbench.stores.slicing import SliceSource
from workbench.stores.trunk import mtp_tensors, trunk_tensors
from workbench.units import MIB

_TINY = {
    "model_type": "qwen4_exp_text",
    "vocab_size": 64,
    "hidden_size": 128,
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "linear_attention", "full_attention"],
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "hc_count": 2,
    "hc_lowrank": 8,
    "ple_layer_ids": [2],
    "ple_embed_dim": 128,
    "ple_conv_kernel_size": 4,
    "ngram_size": 3,
    "heads_per_ngram": 2,
    "ngram_vocab_size_base": 200,
    "make_ngram_vocab_size_divisible_by": 8,
    "split_ngram_parts": 1,
    "indexer_n_heads": 2,
    "indexer_head_dim": 16,
    "indexer_budget": 16,
    "indexer_compress_ratio": 4,
    "rope_theta": 1e4,
    "mtp_num_hidden_layers": 0,
}
QUANTIZATION = {"bits": 4, "group_size": 64, "mode": "affine"}


@pytest.fixture
def tiny_config():
    """A config of three small layers whose records don't end on pages."""
    return json.loads(json.dumps(_TINY))


@pytest.fixture(scope="session")
def _tiny_store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny") / "store"
    source = SliceSource({**_TINY, "quantization": QUANTIZATION}, seed=1)
    StoreBuilder(source, BuildSettings(), {"command": "slice", "layers": 3, "seed": 1}).build(folder)
    return folder


@pytest.fixture
def tiny_store(_tiny_store, tmp_path):
    """A store folder of the small model, the test's own copy."""
    return shutil.copytree(_tiny_store, tmp_path / "store")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a command left."""

    status: int
    out: str
    err: str
    peak_bytes: int


@pytest.fixture
def command(command_line, capsys):
    """Runs `workbench ...` as its entry point does, and measures the most memory that Python and numpy held at once."""

    def run(*tokens):
        capsys.readouterr()
        tracemalloc.start()
        try:
            status = command_line([str(token) for token in tokens])
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        captured = capsys.readouterr()
        return Outcome(status=status, out=captured.out, err=captured.err, peak_bytes=peak)

    return run


@pytest.fixture
def refused(command):
    """Asserts that `workbench verify PATH` refuses in one line that says `says`, before it allocates anything of size."""

    def check(path, says):
        outcome = command("verify", path)
        assert outcome.status == 2
        assert outcome.err.count("\n") == 1, outcome.err
        assert outcome.err.startswith("workbench: ")
        assert says in outcome.err
        assert outcome.out == ""
        assert outcome.peak_bytes < 8 * MIB

    return check


@pytest.fixture
def patch():
    """Overwrites bytes of a file."""

    def write(path, offset, content):
        with open(path, "r+b") as file:
            file.seek(offset)
            file.write(content)

    return write


def _weights(rng, *shape):
    return mx.array(rng.standard_normal(shape).astype(np.float32) * 0.1).astype(mx.bfloat16)


def _expert_tensors(prefix, weights, layout):
    gate, up, down = weights
    if layout == "fused":
        return {f"{prefix}experts.gate_up_proj": mx.concatenate([gate, up], axis=1), f"{prefix}experts.down_proj": down}
    tensors = {}
    for name, stack in zip(("gate_proj", "up_proj", "down_proj"), weights, strict=True):
        if layout == "quantised":
            parts = mx.quantize(stack, 64, 4)
            tensors |= {f"{prefix}switch_mlp.{name}.{s}": p for s, p in zip(("weight", "scales", "biases"), parts, strict=True)}
        elif layout == "stacked":
            tensors[f"{prefix}switch_mlp.{name}.weight"] = stack
        else:
            tensors |= {f"{prefix}experts.{i}.{name}.weight": stack[i] for i in range(len(stack))}
    return tensors


@pytest.fixture
def make_checkpoint(tmp_path, tiny_config):
    """Writes the same small checkpoint in any layout and returns its folder.

    `layout`: quantised, stacked, fused or single; `split`: shards of the n-gram table; `shards`: files; `prefix`: renames.
    """

    def make(name, *, layout="quantised", split=1, shards=1, mtp=True, rename=lambda name: name, config=None, dtype=mx.bfloat16):
        rng = np.random.default_rng(7)
        values = {**tiny_config, "mtp_num_hidden_layers": 1, **(config or {})}
        if layout == "quantised":
            values["quantization"] = QUANTIZATION
        geometry = Geometry.from_config(values)
        experts, narrow, wide = geometry.num_experts, geometry.moe_intermediate_size, geometry.hidden_size
        tensors = {name: _resident(rng, tensor) for name, tensor in (trunk_tensors(geometry) | mtp_tensors(geometry)).items()}
        prefixes = [f"model.layers.{layer}.mlp." for layer in range(geometry.num_hidden_layers)] + ["mtp.layers.0.mlp."]
        for prefix in prefixes:
            shapes = (experts, narrow, wide), (experts, narrow, wide), (experts, wide, narrow)
            tensors |= _expert_tensors(prefix, [_weights(rng, *shape).astype(dtype) for shape in shapes], layout)
        table = _weights(rng, geometry.ple_num_rows(0), geometry.ple_row_width).astype(dtype)
        base = "model.layers.1.ple.ple_embedding.ngram_embedding."
        parts = (
            {f"{base}weight": table}
            if split == 1
            else {f"{base}shard_{i}.weight": p for i, p in enumerate(mx.split(table, split))}
        )
        tensors |= parts
        if not mtp:
            tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("mtp.")}
        return _save(tmp_path / name, values, {rename(name): tensor for name, tensor in tensors.items()}, shards)

    return make


def _resident(rng, tensor):
    if tensor.integers:
        return mx.array(np.array(tensor.integers, np.int64))
    values = _weights(rng, *tensor.info.shape)
    return values.astype(mx.float32) if tensor.info.dtype == "F32" else values


def _save(folder, config, tensors, shards):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(Tokenizer(WordLevel({"a": 0}, "a")).to_str())
    names = sorted(tensors)
    if shards == 1:
        mx.save_safetensors(str(folder / "model.safetensors"), tensors)
        return folder
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        mx.save_safetensors(str(folder / file), {name: tensors[name] for name in names[shard::shards]})
        weight_map |= dict.fromkeys(names[shard::shards], file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder
