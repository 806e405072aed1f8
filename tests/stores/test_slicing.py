import hashlib
import json
import subprocess
import sys
import zlib

import mlx.core as mx
import numpy as np
import pytest

from workbench.geometry import COMPONENTS, Geometry, slice_config
from workbench.paths import bundled_model
from workbench.stores import open_store
from workbench.stores.build import BuildSettings, StoreBuilder
from workbench.stores.codecs import bf16_to_float32, decode_affine
from workbench.stores.ple_codecs import AFFINE_ROWS
from workbench.stores.random_weights import random_bytes, uniform_bf16
from workbench.stores.slicing import SliceSource
from workbench.stores.trunk import trunk_tensors
from workbench.units import GIB


def test_a_stream_is_the_same_whatever_part_is_asked_for():
    whole = random_bytes("a", 0, 1000)
    for start, end in ((0, 1), (31, 33), (32, 64), (63, 999)):
        assert np.array_equal(random_bytes("a", start, end - start), whole[start:end])
    assert not np.array_equal(random_bytes("b", 0, 1000), whole)
    assert np.array_equal(uniform_bf16("a", 7, 50, 1.0), uniform_bf16("a", 0, 100, 1.0)[7:57])


def test_the_drawing_is_fixed_for_ever():
    """Another digest means another generator: give it a new version."""
    source = SliceSource(slice_config(4), seed=0)
    digest = hashlib.sha256()
    for part in (*source.component(1, "down", 3, 4), *source.ngram_matrices(1, AFFINE_ROWS, 5, 9), source.ngram_rows(1, 5, 9)):
        digest.update(part.tobytes())
    for name in ("model.embed_tokens.weight", "model.layers.0.linear_attn.A_log"):
        digest.update(source.read_resident(name, 64, 64).tobytes())
    assert digest.hexdigest()[:16] == "9b7a05aaaa186383"


@pytest.mark.parametrize("component", COMPONENTS)
def test_true_records_are_distinct_incompressible_and_in_range(component):
    source = SliceSource(slice_config(4), seed=0)
    assert source.geometry.record_bytes == 2_764_800
    parts = source.component(3, component, 510, 512)
    first, second = (b"".join(part[i].tobytes() for part in parts) for i in range(2))
    assert first != second
    assert len(zlib.compress(first, 1)) > 0.95 * len(first)
    again = source.component(3, component, 511, 512)
    assert all(np.array_equal(a[1], b[0]) for a, b in zip(parts, again, strict=True))
    words, scales, biases = (part[0] for part in parts)
    weights = decode_affine(words, scales, biases, source.geometry.codec)
    assert abs(weights.mean()) < 0.001
    assert weights.std() * np.sqrt(weights.shape[1]) == pytest.approx(2.0, rel=0.03)


def test_rows_have_the_asked_size_in_both_codecs(tiny_config):
    source = SliceSource(tiny_config, seed=3)
    affine = decode_affine(*source.ngram_matrices(1, AFFINE_ROWS, 0, 800), AFFINE_ROWS)
    plain = bf16_to_float32(source.ngram_rows(1, 0, 800))
    for rows in (affine, plain):
        assert rows.shape == (800, 32)
        assert rows.std() == pytest.approx(0.5, rel=0.03)
    assert np.array_equal(source.ngram_rows(1, 5, 9), source.ngram_rows(1, 0, 10)[5:9])


def test_the_trunk_has_the_names_and_shapes_of_the_bundled_model():
    geometry = Geometry.from_folder(bundled_model())
    stored = mx.load(str(bundled_model() / "model.safetensors"))
    dtypes = {mx.bfloat16: "BF16", mx.float32: "F32", mx.int64: "I64"}
    expected = {
        name: (dtypes[tensor.dtype], tensor.shape)
        for name, tensor in stored.items()
        if not name.startswith("mtp.") and "switch_mlp" not in name and "ngram_embedding.weight" not in name
    }
    trunk = trunk_tensors(geometry)
    assert {name: (t.info.dtype, t.info.shape) for name, t in trunk.items()} == expected
    for name, tensor in trunk.items():
        if tensor.start == "integers":
            assert np.array(stored[name]).tolist() == list(tensor.integers)


def test_parameters_of_the_slice_are_those_of_its_geometry():
    geometry = Geometry.from_config(slice_config(4))
    owners = geometry.parameters_by_owner()
    trunk = sum(owners.values()) - owners["ple_tables"] - owners["routed_experts"]
    stored = trunk_tensors(geometry).values()
    assert sum(np.prod(t.info.shape) for t in stored if t.info.dtype != "I64") == trunk


def test_starting_values_are_finite(tiny_store):
    trunk = mx.load(str(open_store(tiny_store).resident_path))
    assert all(bool(mx.isfinite(tensor).all()) for tensor in trunk.values() if tensor.dtype != mx.int64)
    decay = np.array(trunk["model.layers.0.linear_attn.A_log"])
    assert ((decay >= 0) & (decay <= np.log(16))).all()


def test_the_same_seed_gives_the_same_store(tiny_store, tiny_config, tmp_path):
    config = {**tiny_config, "quantization": {"bits": 4, "group_size": 64, "mode": "affine"}}
    for seed in (1, 2):
        command = {"command": "slice", "layers": 3, "seed": seed}
        StoreBuilder(SliceSource(config, seed), BuildSettings(), command).build(tmp_path / str(seed))
    files = [
        {path.name: path.read_bytes() for path in folder.iterdir()} for folder in (tiny_store, tmp_path / "1", tmp_path / "2")
    ]
    assert files[0] == files[1]
    assert files[1]["experts.em2"] != files[2]["experts.em2"]


MEASURED = """
import json, sys
from workbench.cli import main
from workbench.hardware import peak_rss_bytes
try:
    main()
finally:
    print(json.dumps({"peak_rss_bytes": peak_rss_bytes()}), file=sys.stderr)
"""


@pytest.mark.soak
def test_two_layers_of_true_size_within_memory(tmp_path):
    words = ["slice", "--layers", "2", "--out", str(tmp_path / "slice")]
    done = subprocess.run([sys.executable, "-c", MEASURED, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stderr.splitlines()[-1])["peak_rss_bytes"] < 1.5 * GIB
    store = open_store(tmp_path / "slice")
    assert store.geometry.num_experts == 512
    assert store.experts.record(1, 511).num_bytes == 2_764_800
    store.experts.verify()


def test_a_slice_of_one_layer_is_refused(command, tmp_path):
    done = command("slice", "--layers", 1, "--out", tmp_path / "out")
    assert (done.status, done.err.count("\n")) == (2, 1)
    assert "at least 2 layers" in done.err
