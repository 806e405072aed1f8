import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workbench.geometry import COMPONENTS
from workbench.stores import ExpertStore
from workbench.stores.codecs import deinterleave_component
from workbench.stores.expert_writer import ExpertWriter
from workbench.stores.slicing import SliceSource
from workbench.stores.workspace import Workspace

planar = st.tuples(st.just(2), st.sampled_from((2, 3, 4, 5, 6, 8)), st.sampled_from((32, 64)))
interleaved = st.just((1, 4, 64))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    layout=planar | interleaved,
    hidden=st.sampled_from((64, 128, 192)),
    narrow=st.sampled_from((64, 320)),
    num_experts=st.integers(2, 7),
    num_layers=st.integers(1, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_record_comes_back(tmp_path_factory, tiny_config, layout, hidden, narrow, num_experts, num_layers, seed):
    storage_format, bits, group_size = layout
    config = {
        **tiny_config,
        "hidden_size": hidden,
        "moe_intermediate_size": narrow,
        "num_experts": num_experts,
        "num_hidden_layers": num_layers,
        "layer_types": ["linear_attention"] * num_layers,
        "ple_layer_ids": [1],
        "quantization": {"bits": bits, "group_size": group_size},
    }
    source = SliceSource(config, seed)
    writer = ExpertWriter(source, storage_format)
    folder = tmp_path_factory.mktemp("records")
    with Workspace(folder, {}) as work:
        payload = work.write(writer.plan, lambda num_bytes: None)
        work.put("experts.crc", writer.checksums(payload))
    store = ExpertStore.open(folder / "experts.em2", geometry=source.geometry, verify_digest=True)
    assert (store.codec, store.header_digest) == (source.geometry.codec, writer.header_sha256(payload))
    content = store.path.read_bytes()
    for layer in range(num_layers):
        assert store.layers[layer].offset % 4096 == 0
        for expert in range(num_experts):
            for name in COMPONENTS:
                extent = store.component(layer, expert, name)
                stored = np.frombuffer(content[extent.offset : extent.end], np.uint8)
                if storage_format == 1:
                    stored = deinterleave_component(stored, source.geometry.component_shape(name))
                expected = [part.tobytes() for part in source.component(layer, name, expert, expert + 1)]
                assert stored.tobytes() == b"".join(expected)
