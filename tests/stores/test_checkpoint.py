import hashlib
import json
import re

import mlx.core as mx
import numpy as np
import pytest

from workbench.errors import BadInput
from workbench.geometry import COMPONENTS, Codec
from workbench.stores.checkpoint import Checkpoint
from workbench.stores.ple_codecs import AFFINE_ROWS
from workbench.stores.tensor_names import text_name


def all_experts(checkpoint):
    return {
        (layer, name): checkpoint.component(layer, name, 0, checkpoint.geometry.num_experts)
        for layer in checkpoint.expert_layers
        for name in COMPONENTS
    }


def assert_same(one, other):
    assert one.keys() == other.keys()
    for key, matrices in one.items():
        assert all(np.array_equal(a, b) for a, b in zip(matrices, other[key], strict=True)), key


LAYOUTS = [
    {"layout": "fused"},
    {"layout": "single", "shards": 3},
    {"layout": "stacked", "split": 4, "shards": 2},
    {"layout": "fused", "shards": 4, "rename": lambda n: n.replace("model.", "model.language_model.", 1) if n[0] == "m" else n},
    {"layout": "quantised", "rename": lambda name: "language_model." + name},
]


@pytest.mark.parametrize("options", LAYOUTS)
def test_every_layout_gives_the_same_weights(make_checkpoint, options):
    with Checkpoint(make_checkpoint("plain")) as plain, Checkpoint(make_checkpoint("other", **options)) as other:
        assert plain.expert_layers == other.expert_layers == (0, 1, 2, 3)
        assert_same(all_experts(plain), all_experts(other))
        assert np.array_equal(plain.ngram_rows(1, 3, 401), other.ngram_rows(1, 3, 401))
        assert plain.resident == other.resident
        for name, info in plain.resident.items():
            pair = [checkpoint.read_resident(name, 0, info.num_bytes) for checkpoint in (plain, other)]
            assert np.array_equal(*pair)


def test_slices_are_parts_of_the_whole(make_checkpoint):
    with Checkpoint(make_checkpoint("fused", layout="fused", split=4)) as checkpoint:
        whole = all_experts(checkpoint)
        for first, stop in ((0, 1), (1, 4), (4, 5)):
            part = checkpoint.component(1, "up", first, stop)
            assert all(np.array_equal(a, b[first:stop]) for a, b in zip(part, whole[1, "up"], strict=True))
        rows = checkpoint.ngram_rows(1, 0, checkpoint.geometry.ple_num_rows(0))
        quarter = len(rows) // 4
        assert np.array_equal(checkpoint.ngram_rows(1, quarter - 2, 2 * quarter + 2), rows[quarter - 2 : 2 * quarter + 2])


def test_bf16_experts_are_what_mlx_quantises(make_checkpoint):
    folder = make_checkpoint("fused", layout="fused")
    stored = mx.load(str(folder / "model.safetensors"))
    with Checkpoint(folder, codec=Codec(bits=8, group_size=32)) as checkpoint:
        words, scales, biases = checkpoint.component(2, "up", 0, 5)
    expected = mx.quantize(stored["model.layers.2.mlp.experts.gate_up_proj"][:, 64:], 32, 8)
    assert np.array_equal(words, np.array(expected[0]))
    assert np.array_equal(scales, np.array(expected[1].view(mx.uint16)))
    assert np.array_equal(biases, np.array(expected[2].view(mx.uint16)))


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16])
def test_wider_floats_become_bf16_first(make_checkpoint, dtype):
    with Checkpoint(make_checkpoint("bf16", layout="single")) as plain:
        expected, rows = all_experts(plain), plain.ngram_rows(1, 0, 100)
    with Checkpoint(make_checkpoint("wide", layout="single", dtype=dtype)) as wide:
        assert_same(all_experts(wide), expected)
        assert np.array_equal(wide.ngram_rows(1, 0, 100), rows)


def test_a_quantised_table_is_taken_as_it_is(make_checkpoint):
    folder = make_checkpoint("plain")
    path, base = folder / "model.safetensors", "model.layers.1.ple.ple_embedding.ngram_embedding."
    with Checkpoint(folder) as plain:
        expected = plain.ngram_matrices(1, AFFINE_ROWS, 5, 300)
    tensors = mx.load(str(path))
    parts = mx.quantize(tensors.pop(f"{base}weight"), 32, 4)
    tensors |= {base + name: part for name, part in zip(("weight", "scales", "biases"), parts, strict=True)}
    mx.save_safetensors(str(path), tensors)
    with Checkpoint(folder) as quantised:
        assert all(np.array_equal(a, b) for a, b in zip(quantised.ngram_matrices(1, AFFINE_ROWS, 5, 300), expected, strict=True))
        with pytest.raises(BadInput, match=r"ngram_embedding\.weight is U32"):
            quantised.ngram_rows(1, 0, 10)


def test_an_mtp_head_that_was_dropped_is_not_promised(make_checkpoint):
    with Checkpoint(make_checkpoint("headless", mtp=False)) as checkpoint:
        assert checkpoint.expert_layers == (0, 1, 2)
        assert checkpoint.store_config()["mtp_num_hidden_layers"] == 0
    with Checkpoint(make_checkpoint("whole", layout="fused")) as checkpoint:
        assert checkpoint.store_config() == checkpoint.config | {"quantization": {"bits": 4, "group_size": 64, "mode": "affine"}}


def test_identity_of_one_file_and_of_shards(make_checkpoint):
    one, many = make_checkpoint("one"), make_checkpoint("many", shards=3)
    with Checkpoint(one) as checkpoint:
        checkpoint.identify()
        content = (one / "model.safetensors").read_bytes()
        assert checkpoint.identity.sha256 == hashlib.sha256(content).hexdigest()
        assert checkpoint.identity.num_bytes == len(content)
    with Checkpoint(many) as checkpoint:
        checkpoint.identify()
        digests = sorted(hashlib.sha256(path.read_bytes()).digest() for path in many.glob("*.safetensors"))
        assert checkpoint.identity.sha256 == hashlib.sha256(b"".join(digests)).hexdigest()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("model.language_model.layers.0.mlp.gate.weight", "model.layers.0.mlp.gate.weight"),
        ("language_model.model.norm.weight", "model.norm.weight"),
        ("language_model.lm_head.weight", "lm_head.weight"),
        ("lm_head.weight", "lm_head.weight"),
        ("mtp.fc_hidden.weight", "mtp.fc_hidden.weight"),
        ("model.visual.blocks.0.attn.qkv.weight", None),
        ("vision_tower.patch_embed.weight", None),
    ],
)
def test_names_of_the_text_model(name, text):
    assert text_name(name) == text


def edit_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def remove_tensor(folder, name):
    path = folder / "model.safetensors"
    tensors = mx.load(str(path))
    del tensors[name]
    mx.save_safetensors(str(path), tensors)


BROKEN = {
    "layer": (lambda f: edit_config(f, num_hidden_layers=4, layer_types=None), "no expert tensors of layer 3|config.json"),
    "experts": (lambda f: edit_config(f, num_experts=6), "mlp.gate.weight is BF16 .5, 128., not BF16 .6, 128."),
    "rows": (lambda f: edit_config(f, ngram_vocab_size_base=300), "ngram_heads_offsets holds other integers"),
    "table": (
        lambda f: remove_tensor(f, "model.layers.1.ple.ple_embedding.ngram_embedding.weight"),
        "no n-gram table of layer 1",
    ),
    "scales": (lambda f: remove_tensor(f, "model.layers.0.mlp.switch_mlp.up_proj.biases"), "up_proj.biases is missing"),
    "mode": (lambda f: edit_config(f, quantization={"mode": "mxfp4"}), "other than by MLX affine"),
    "file": (lambda f: (f / "model.safetensors").unlink(), "no .*safetensors"),
    "config": (lambda f: (f / "config.json").unlink(), "no config.json"),
    "header": (lambda f: (f / "model.safetensors").write_bytes(b"\xff" * 100), "a header of"),
    "empty": (lambda f: (f / "model.safetensors").write_bytes(b""), "truncated"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_checkpoints_are_refused_in_one_line(make_checkpoint, tmp_path, command, name):
    damage, says = BROKEN[name]
    folder = make_checkpoint("broken")
    damage(folder)
    outcome = command("pack", folder, "--out", tmp_path / "out")
    assert (outcome.status, outcome.out, outcome.err.count("\n")) == (2, "", 1), outcome.err
    assert re.search(says, outcome.err), outcome.err


def test_a_missing_shard_is_named(make_checkpoint):
    folder = make_checkpoint("sharded", shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(BadInput, match=r"model-00002-of-00003\.safetensors is missing \(1 of 3\)"):
        Checkpoint(folder)


@pytest.mark.parametrize("index", ["{}", "[]", "x", '{"weight_map": {"a": "../b.safetensors"}}', '{"weight_map": {"a": 3}}'])
def test_hostile_indices(make_checkpoint, index):
    folder = make_checkpoint("sharded", shards=2)
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(BadInput, match=r"index\.json"):
        Checkpoint(folder)


def test_other_bits_than_those_it_has(make_checkpoint):
    with pytest.raises(BadInput, match="already quantised"):
        Checkpoint(make_checkpoint("quantised"), codec=Codec(bits=8))
