import hashlib
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter

from workbench.errors import BadInput
from workbench.geometry import COMPONENTS, Geometry
from workbench.stores import ExpertStore, open_store
from workbench.stores.build import BuildSettings, StoreBuilder
from workbench.stores.codecs import deinterleave_component
from workbench.stores.slicing import SliceSource

DATA = Path(__file__).parent.parent / "data"
FOREIGN = DATA / "expert_major_v2_native.gguf"
CANONICAL = DATA / "expert_major_v2_canonical.gguf"


def read(path, extent):
    with open(path, "rb") as file:
        file.seek(extent.offset)
        return file.read(extent.num_bytes)


def test_the_foreign_file_is_what_its_readme_says():
    source = "890650f249060156094e792521ba947a927f4b20db100499cb7bc94d101e7ad8"
    output = "05c5302a50a9b3b3f0b047505973336e5a9ba834de1692095e9a6a68e3685c4f"
    assert [hashlib.sha256(path.read_bytes()).hexdigest() for path in (CANONICAL, FOREIGN)] == [source, output]
    store = ExpertStore.open(FOREIGN, verify_digest=True)
    assert store.digest == "e22864a8b5346b464f66f14f4b927946a569ff7731e9fdb889c7df16d9d67d4c"
    assert store.header.source_sha256.hex() == source
    assert (store.header.family, store.storage_format, store.header.experts_used, store.codec) == (3, 0, 2, None)


def test_every_foreign_record_holds_its_canonical_tensors():
    store = ExpertStore.open(FOREIGN)
    canonical = {tensor.name: tensor.data for tensor in GGUFReader(CANONICAL).tensors}
    assert [layer.layer for layer in store.layers] == [0, 1]
    for layer in (0, 1):
        for expert in range(store.num_experts):
            parts = [canonical[f"blk.{layer}.ffn_{name}_exps.weight"][expert].tobytes() for name in COMPONENTS]
            assert read(FOREIGN, store.record(layer, expert)) == b"".join(parts)
            for name, part in zip(COMPONENTS, parts, strict=True):
                assert read(FOREIGN, store.component(layer, expert, name)) == part
                assert store.crc32(layer, expert, name) is None


def test_extents_of_a_record_are_its_components(tiny_store):
    experts = open_store(tiny_store).experts
    for layer in range(3):
        record = experts.record(layer, 4)
        within = [experts.component_in_record(layer, name) for name in COMPONENTS]
        assert [part.offset for part in within] == [0, within[0].end, within[1].end]
        assert within[2].end == record.num_bytes
        assert [experts.component(layer, 4, name).offset for name in COMPONENTS] == [record.offset + p.offset for p in within]
    with pytest.raises(IndexError):
        experts.record(0, 5)
    with pytest.raises(KeyError):
        experts.record(3, 0)


@pytest.mark.parametrize("alignment", [32, 64, 4096])
def test_an_embedded_store_is_the_bare_one_at_absolute_offsets(tiny_store, tmp_path, alignment):
    bare = tiny_store / "experts.em2"
    embedded = tmp_path / "embedded.gguf"
    writer = GGUFWriter(embedded, "qwen4exp")
    writer.add_custom_alignment(alignment)
    writer.add_array("tokenizer.ggml.tokens", ["a", "bc", "d" * 100])
    writer.add_tensor("first", np.zeros(7, np.float32))
    writer.add_tensor("ds4.expert_major.v2", np.fromfile(bare, np.int8))
    writer.add_tensor("last", np.zeros(3, np.float32))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    outer, inner = ExpertStore.open(embedded, verify_digest=True), ExpertStore.open(bare)
    assert (outer.digest, outer.layers, outer.has_checksums) == (inner.digest, inner.layers, False)
    assert outer.record(2, 4).offset > inner.record(2, 4).offset
    assert read(embedded, outer.record(2, 4)) == read(bare, inner.record(2, 4))


def test_formats_1_and_2_hold_the_same_weights(tiny_store, tiny_config, tmp_path):
    source = SliceSource({**tiny_config, "quantization": {"bits": 4, "group_size": 64}}, seed=1)
    StoreBuilder(source, BuildSettings(storage_format=1), {"command": "slice"}).build(tmp_path / "interleaved")
    planar, interleaved = open_store(tiny_store), open_store(tmp_path / "interleaved")
    assert (planar.experts.storage_format, interleaved.experts.storage_format) == (2, 1)
    assert interleaved.experts.codec == planar.experts.codec
    for layer, expert, name in [(0, 0, "gate"), (1, 3, "up"), (2, 4, "down")]:
        paths = [(store.experts.path, store.experts.component(layer, expert, name)) for store in (planar, interleaved)]
        bytes_2, bytes_1 = (np.frombuffer(read(*place), np.uint8) for place in paths)
        assert np.array_equal(deinterleave_component(bytes_1, planar.geometry.component_shape(name)), bytes_2)


def test_a_store_of_another_model_is_refused(tiny_store, tiny_config):
    path = tiny_store / "experts.em2"
    for change in ({"num_experts": 6}, {"num_experts_per_tok": 3}, {"hidden_size": 256}, {"quantization": {"bits": 8}}):
        geometry = Geometry.from_config({**tiny_config, **change})
        with pytest.raises(BadInput, match="geometry disagrees"):
            ExpertStore.open(path, geometry=geometry)
    with pytest.raises(BadInput, match="family qwen35moe"):
        ExpertStore.open(FOREIGN, geometry=Geometry.from_config(tiny_config))


def test_a_store_without_the_mtp_layer_is_the_models(tiny_store, tiny_config):
    with_head = Geometry.from_config({**tiny_config, "mtp_num_hidden_layers": 1})
    assert len(ExpertStore.open(tiny_store / "experts.em2", geometry=with_head).layers) == 3
