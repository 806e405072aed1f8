from types import SimpleNamespace

import numpy as np
import pytest

from workbench.loading.records import RecordSource
from workbench.runtime.memory import RecordMemory
from workbench.runtime.store_cache import lead_in_granule
from workbench.scheduling.pool import DOWN_BIT, GATE_UP_BITS, RECORD_BITS
from workbench.stores import open_store
from workbench.units import PAGE_BYTES

NAMES = {RECORD_BITS: ("gate", "up", "down"), GATE_UP_BITS: ("gate", "up"), DOWN_BIT: ("down",)}


@pytest.fixture(scope="module")
def placed(packed):
    store = open_store(packed)
    pool = RecordMemory(store.geometry, 2, lead_in_granule(store))
    return store, pool, RecordSource(store.experts, pool, 5, checksums=True)


@pytest.mark.parametrize("bits", NAMES)
@pytest.mark.parametrize("key", [0, 1, 127, 128, 700, 1023])
def test_a_read_covers_its_components_and_brings_them_where_compute_looks(placed, bits, key):
    store, pool, source = placed
    layer, expert = divmod(key, 128)
    extents = [store.experts.component(layer, expert, name) for name in NAMES[bits]]
    read = source.read(SimpleNamespace(ticket=SimpleNamespace(key=key), bits=bits, slot=1, number=9, queue="expert"))
    assert (read.key, read.file, read.offset % PAGE_BYTES, read.num_bytes % PAGE_BYTES) == (9, 5, 0, 0)
    assert read.alone is (bits != RECORD_BITS)
    assert read.offset <= extents[0].offset < read.offset + PAGE_BYTES
    assert read.offset + read.need_bytes == extents[-1].end <= read.offset + read.num_bytes
    assert source.sizes(key, bits) == (sum(extent.num_bytes for extent in extents), read.num_bytes)
    assert [(sum.start + read.offset, sum.num_bytes) for sum in read.checksums] == [(e.offset, e.num_bytes) for e in extents]
    content = np.fromfile(store.experts.path, dtype=np.uint8, count=read.num_bytes, offset=read.offset)
    read.into[: len(content)] = content
    assert read.check() is None
    record = store.experts.record(layer, expert)
    inside = slice(extents[0].offset - record.offset, extents[-1].end - record.offset)
    wanted = content[extents[0].offset - read.offset :][: inside.stop - inside.start]
    np.testing.assert_array_equal(pool.record(1, source.lead_in(key))[inside], wanted)
