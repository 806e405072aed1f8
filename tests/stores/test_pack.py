import json
import zlib

import mlx.core as mx
import numpy as np
import pytest

from workbench.geometry import COMPONENTS
from workbench.paths import bundled_model
from workbench.stores import open_store
from workbench.stores.build import BuildSettings
from workbench.stores.pack import pack


def bodies(store):
    """What doesn't name its source: records, pages, trunk."""
    experts = store.experts.path.read_bytes()[store.experts.header.data_offset :]
    pages = {layer: ngrams.path.read_bytes()[ngrams.page(0).offset :] for layer, ngrams in store.ngrams.items()}
    return experts, pages, store.resident_path.read_bytes()


@pytest.fixture(scope="module")
def bundled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mini") / "store"
    pack(bundled_model(), folder)
    return open_store(folder)


def test_every_record_of_the_bundled_model_is_its_tensors(bundled):
    tensors = mx.load(str(bundled_model() / "model.safetensors"))
    content = bundled.experts.path.read_bytes()
    assert bundled.manifest.experts.layers == tuple(range(9))
    for layer in range(9):
        prefix = f"model.layers.{layer}" if layer < 8 else "mtp.layers.0"
        for name in COMPONENTS:
            parts = [tensors[f"{prefix}.mlp.switch_mlp.{name}_proj.{kind}"] for kind in ("weight", "scales", "biases")]
            words, scales, biases = (np.array(part if part.dtype == mx.uint32 else part.view(mx.uint16)) for part in parts)
            for expert in range(128):
                extent = bundled.experts.component(layer, expert, name)
                expected = words[expert].tobytes() + scales[expert].tobytes() + biases[expert].tobytes()
                assert content[extent.offset : extent.end] == expected


def test_every_row_and_the_trunk_of_the_bundled_model(bundled):
    tensors = mx.load(str(bundled_model() / "model.safetensors"))
    table = tensors["model.layers.1.ple.ple_embedding.ngram_embedding.weight"]
    store = bundled.ngrams[1]
    pages, slots = store.locate(np.arange(store.num_rows))
    content = np.fromfile(store.path, np.uint8)[store.page(0).offset :].reshape(-1, store.page_bytes)
    assert store.codec.kind.name == "BF16"
    assert np.array_equal(store.decode(content, pages, slots), np.array(table.astype(mx.float32)))
    trunk = mx.load(str(bundled.resident_path))
    streamed = {name for name in tensors if "switch_mlp" in name or "ngram_embedding.weight" in name}
    assert trunk.keys() == tensors.keys() - streamed
    assert all(trunk[name].dtype == tensors[name].dtype and mx.array_equal(trunk[name], tensors[name]) for name in trunk)


def test_checksums_are_those_of_the_components(bundled):
    content = bundled.experts.path.read_bytes()
    for layer, expert, name in ((0, 0, "gate"), (3, 77, "up"), (8, 127, "down")):
        extent = bundled.experts.component(layer, expert, name)
        assert bundled.experts.crc32(layer, expert, name) == zlib.crc32(content[extent.offset : extent.end])


@pytest.mark.parametrize(
    "options",
    [
        {"layout": "fused", "shards": 3, "split": 4},
        {"layout": "single", "split": 7},
        {"layout": "stacked", "shards": 2},
        {"rename": lambda name: "language_model." + name},
    ],
)
def test_every_layout_packs_to_the_same_bytes(make_checkpoint, tmp_path, options):
    plain, other = make_checkpoint("plain"), make_checkpoint("other", **options)
    for name in ("plain", "other"):
        pack({"plain": plain, "other": other}[name], tmp_path / f"{name}-store")
    stores = [open_store(tmp_path / f"{name}-store") for name in ("plain", "other")]
    assert bodies(stores[0]) == bodies(stores[1])
    assert stores[0].experts.digest == stores[1].experts.digest
    assert stores[0].geometry == stores[1].geometry


@pytest.mark.parametrize("page_bytes", [4096, 16_384])
@pytest.mark.parametrize("row_codec", ["bf16", "affine4"])
@pytest.mark.parametrize("storage_format", [1, 2])
def test_every_setting_packs_and_verifies(make_checkpoint, tmp_path, command, page_bytes, row_codec, storage_format):
    folder = make_checkpoint("source", layout="fused")
    words = ["pack", folder, "--out", tmp_path / "out", "--format", storage_format, "--page-bytes", page_bytes, "--json"]
    done = command(*words, "--row-codec", row_codec)
    assert (done.status, done.err) == (0, "")
    manifest = json.loads(done.out)["manifest"]
    assert manifest["ngrams"][0]["page_bytes"] == page_bytes
    assert manifest["ngrams"][0]["codec"] == row_codec
    assert manifest["experts"]["storage_format"] == storage_format
    verified = command("verify", tmp_path / "out", "--json")
    assert verified.status == 0
    assert {entry["file"] for entry in json.loads(verified.out)["files"]} == set(manifest["files"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--format", "0"], "can't be written"),
        (["--row-codec", "int8"], "no such row codec"),
        (["--page-bytes", "8192"], "pages of 8192 bytes"),
        (["--bits", "7"], "bits 2..8"),
        (["--group-size", "128"], "can't be in groups of 128"),
        (["--bits", "8", "--format", "1"], "use format 2"),
    ],
)
def test_settings_that_make_no_sense(make_checkpoint, tmp_path, command, words, says):
    done = command("pack", make_checkpoint("source", layout="fused"), "--out", tmp_path / "out", *words)
    assert (done.status, done.out, done.err.count("\n")) == (2, "", 1)
    assert says in done.err
    assert not (tmp_path / "out").exists()


def test_packing_again_changes_nothing_and_another_source_is_refused(make_checkpoint, tmp_path, command):
    folder, out = make_checkpoint("source"), tmp_path / "out"
    first = pack(folder, out)
    before = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    assert pack(folder, out) == first
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == before
    for words in ([folder, "--page-bytes", "16384"], [make_checkpoint("other", layout="fused")]):
        done = command("pack", *words, "--out", out)
        assert done.status == 2
        assert "holds another store" in done.err


def test_a_folder_with_other_things_in_it_is_refused(make_checkpoint, tmp_path, command):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("precious")
    done = command("pack", make_checkpoint("source"), "--out", tmp_path / "out")
    assert done.status == 2
    assert "holds thesis.txt but no interrupted pack" in done.err


def test_an_out_that_is_a_file(make_checkpoint, tmp_path, command):
    (tmp_path / "out").write_text("")
    done = command("pack", make_checkpoint("source"), "--out", tmp_path / "out")
    assert (done.status, done.err.count("\n")) == (2, 1)
    assert "name a folder" in done.err


def test_memory_stays_bounded_on_a_large_table(make_checkpoint, tmp_path, command):
    """46 MB of rows in pieces of 16 MiB: three pieces and what one is made from."""
    config = {"ngram_vocab_size_base": 180_000}
    folder = make_checkpoint("large", layout="fused", config=config)
    done = command("pack", folder, "--out", tmp_path / "out", "--row-codec", "bf16")
    assert done.status == 0
    assert (tmp_path / "out" / "ngrams.1.ple").stat().st_size > 46e6
    assert done.peak_bytes < 90e6


def test_settings_of_the_library_are_those_of_the_command():
    assert BuildSettings() == BuildSettings(storage_format=2, row_codec=None, page_bytes=4096)
