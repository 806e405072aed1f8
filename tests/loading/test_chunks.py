from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.geometry import COMPONENTS
from workbench.loading.chunks import ChunkSource, cut_layers
from workbench.readers import PreadReader
from workbench.runtime.memory import RecordMemory
from workbench.runtime.store_cache import lead_in_granule
from workbench.stores import open_store
from workbench.stores.extents import Extent
from workbench.units import MIB, PAGE_BYTES, align_up


class Layout:
    """A store of records back to back, as far as a cut looks."""

    def __init__(self, start, record_bytes, num_experts):
        self.num_experts = num_experts
        self.layers = [SimpleNamespace(layer=0), SimpleNamespace(layer=1)]
        layer_bytes = align_up(num_experts * record_bytes, PAGE_BYTES)
        self.record = lambda layer, expert: Extent(
            offset=start + layer * layer_bytes + expert * record_bytes, num_bytes=record_bytes
        )


@given(
    st.sampled_from([0, 32, 1024]),
    st.integers(1, 3000).map(lambda words: 4 * words),
    st.integers(2, 600),
    st.integers(0, 64 * MIB),
)
def test_every_chunk_has_the_same_lead_in_and_every_expert_is_in_one(start, record_bytes, num_experts, ring_bytes):
    store = Layout(start, record_bytes, num_experts)
    cut = cut_layers(store, ring_bytes)
    for layer in (0, 1):
        firsts = [cut.experts(index)[0] for index in range(cut.per_layer)]
        assert {store.record(layer, first).offset % PAGE_BYTES for first in firsts} == {cut.lead_in}
    experts = [expert for index in range(cut.per_layer) for expert in cut.experts(index)]
    assert experts == list(range(num_experts))
    assert cut.num_places * cut.place_bytes <= ring_bytes
    assert cut.num_places != 1
    assert cut.place_bytes % PAGE_BYTES == 0


@pytest.mark.parametrize(
    ("record_bytes", "ring_mib", "length", "places"),
    [(2_764_800, 1024, 6, 64), (2_764_800, 27, 1, 10), (27_648, 2, 8, 9), (27_648, 1024, 128, 303), (2_764_800, 4, 1, 0)],
)
def test_chunks_are_large_in_large_rings_and_small_in_small_ones(record_bytes, ring_mib, length, places):
    cut = cut_layers(Layout(0, record_bytes, 512 if record_bytes > MIB else 128), ring_mib * MIB)
    assert (cut.length, cut.num_places) == (length, places)


@pytest.fixture
def source(packed):
    store = open_store(packed)
    pool = RecordMemory(store.geometry, 40, lead_in_granule(store))
    cut = cut_layers(store.experts, 12 * pool.stride_bytes - PAGE_BYTES)
    with PreadReader() as reader:
        yield ChunkSource(store.experts, pool, 28, cut, reader.open_file(store.experts.path), checksums=True), store, pool, reader


def order(key, place):
    return SimpleNamespace(ticket=SimpleNamespace(key=key), slot=place, number=key, queue="expert", bits=1)


def test_records_of_a_chunk_are_seen_where_they_lie(source):
    chunks, store, pool, reader = source
    before = pool.memory(pool.offset(0), 27 * pool.stride_bytes).copy()
    last = chunks.keys(5)[-1]
    for key, place in ((chunks.keys(0)[0], 0), (last, 1)):
        reader.submit([chunks.read(order(key, place))])
        (done,) = reader.poll(5)
        assert done.error is None
        for position, record in enumerate(chunks.records(key)):
            layer, expert = divmod(record, store.geometry.num_experts)
            assert chunks.chunk(record) == key
            for name, view in pool.components_at(chunks.record_start(place, position)).items():
                extent = store.experts.component(layer, expert, name)
                with store.experts.path.open("rb") as file:
                    file.seek(extent.offset)
                    assert np.array(view.words).tobytes() == file.read(view.words.nbytes)
    np.testing.assert_array_equal(pool.memory(pool.offset(0), 27 * pool.stride_bytes), before, "a read outside of the ring")


def test_a_chunk_is_checked_record_by_record(source):
    chunks, _, _, reader = source
    read = chunks.read(order(3, 0))
    assert len(read.checksums) == len(COMPONENTS) * len(chunks.records(3))
    reader.submit([read])
    reader.poll(5)
    np.frombuffer(read.into, np.uint8)[read.checksums[4].start] ^= 1
    assert read.check() is not None
