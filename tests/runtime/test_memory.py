import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.geometry import COMPONENTS, FLASH_NEXT, Geometry
from workbench.hardware import huge_page_bytes
from workbench.paths import bundled_model
from workbench.readers import aligned_buffer
from workbench.runtime import memory as memory_module
from workbench.runtime.memory import PageMemory, RecordMemory, slot_stride_bytes
from workbench.units import MIB, PAGE_BYTES, align_up

MINI = Geometry.from_folder(bundled_model())
GRANULE = 1024


def address(array):
    """Where an MLX array's bytes lie; bfloat16 is looked at as uint16, which numpy knows."""
    plain = array.view(mx.uint16) if array.dtype == mx.bfloat16 else array
    return np.array(plain, copy=False).__array_interface__["data"][0]


def put_record(pool, slot, lead_in, seed):
    """Random packed words and sane scales, written as a reader would; the matrices that they encode."""
    random = np.random.default_rng(seed)
    parts, matrices = [], {}
    for name in COMPONENTS:
        rows, columns = MINI.component_shape(name)
        weight = mx.array(random.standard_normal((rows, columns)).astype(np.float32)).astype(mx.bfloat16)
        words, scales, biases = mx.quantize(weight, group_size=64, bits=4)
        parts += [
            np.array(words).tobytes(),
            np.array(scales.view(mx.uint16)).tobytes(),
            np.array(biases.view(mx.uint16)).tobytes(),
        ]
        matrices[name] = (words, scales.astype(mx.float32), biases.astype(mx.float32))
    record = np.frombuffer(b"".join(parts), dtype=np.uint8)
    window = pool.window(slot, align_up(lead_in + len(record), PAGE_BYTES))
    window[:] = random.integers(0, 256, len(window))
    window[lead_in : lead_in + len(record)] = record
    pool.arrived(slot, lead_in, COMPONENTS)
    return matrices


def test_windows_start_on_pages_and_lie_in_the_pool():
    pool = RecordMemory(MINI, 5, GRANULE)
    starts = [pool.window(slot, 8192).__array_interface__["data"][0] for slot in range(5)]
    assert all(start % PAGE_BYTES == 0 for start in starts)
    assert set(np.diff(starts)) == {pool.stride_bytes}
    assert pool.num_bytes == 5 * pool.stride_bytes


def test_slots_lie_on_huge_pages_where_there_are_any():
    reference, pool = aligned_buffer(8 * MIB), RecordMemory(FLASH_NEXT, 4, GRANULE)
    reference[:] = 1
    has_some = huge_page_bytes(reference.ctypes.data, len(reference)) > 0
    window = pool.window(1, pool.stride_bytes)
    # where memory is short the kernel finds some huge pages, not all
    assert (huge_page_bytes(window.__array_interface__["data"][0], len(window)) >= 2 * MIB) == has_some
    assert not window.any()


@pytest.mark.parametrize("lead_in", range(0, PAGE_BYTES, GRANULE))
def test_component_views_share_the_slots_memory(lead_in, monkeypatch):
    monkeypatch.setattr(memory_module, "SMALL_RECORD_BYTES", 0)
    pool = RecordMemory(MINI, 3, GRANULE)
    start = pool.record(2, lead_in).__array_interface__["data"][0]
    for name in COMPONENTS:
        rows, columns = MINI.component_shape(name)
        view = pool.components(2, lead_in)[name]
        assert address(view.words) == start
        assert address(view.scales) == start + rows * columns // 2
        assert address(view.biases) == start + rows * columns // 2 + 2 * rows * columns // 64
        start += MINI.component_bytes(name)
    assert pool.components(2, lead_in) is pool.components(2, lead_in), "views are built once"


@pytest.mark.parametrize("offset", [0, GRANULE, 3 * slot_stride_bytes(MINI, GRANULE) - 3 * GRANULE])
def test_views_of_a_record_across_slots_share_their_memory(offset):
    pool = RecordMemory(MINI, 5, GRANULE)
    start = pool.offset(1) + offset
    memory = pool.memory(start, MINI.record_bytes)
    for name, view in pool.components_at(start).items():
        rows, columns = MINI.component_shape(name)
        where = memory.__array_interface__["data"][0]
        assert (address(view.words), address(view.scales)) == (where, where + rows * columns // 2)
        memory[: rows * columns // 2] = 7
        assert (np.array(view.words) == 0x07070707).all(), "a later write is not seen"
        memory = memory[MINI.component_bytes(name) :]


def test_a_moved_record_is_the_same_in_its_new_slot():
    pool = RecordMemory(MINI, 4, GRANULE)
    put_record(pool, 3, GRANULE, 1)
    pool.move(3, 1)
    np.testing.assert_array_equal(pool.record(1, GRANULE), pool.record(3, GRANULE))
    x = mx.array(np.ones((1, 1, 1, MINI.hidden_size), dtype=np.float32))
    old, new = (mx.array(np.array([[pool.entry(slot, GRANULE)]], dtype=np.uint32)) for slot in (3, 1))
    found = [np.array(pool.stack["gate"].apply_gathered(x, ids)) for ids in (old, new)]
    np.testing.assert_array_equal(found[1], found[0])


@pytest.mark.parametrize("lead_in", range(0, PAGE_BYTES, GRANULE))
def test_a_stack_entry_is_the_record_and_sees_later_writes(lead_in):
    pool = RecordMemory(MINI, 4, GRANULE)
    assert pool.small
    start = pool.record(0, 0).__array_interface__["data"][0]
    assert address(pool.stack["gate"].words) == start
    for seed in (1, 2):
        matrices = put_record(pool, 3, lead_in, seed)
        entry = pool.entry(3, lead_in)
        for name in COMPONENTS:
            x = mx.array(np.random.default_rng(seed).standard_normal((1, MINI.component_shape(name)[1])).astype(np.float32))
            ids = mx.array(np.array([[entry]], dtype=np.uint32))
            found = pool.stack[name].apply_gathered(x[:, None, None, :], ids).reshape(1, -1)
            wanted = mx.quantized_matmul(x, *matrices[name], transpose=True, group_size=64, bits=4)
            np.testing.assert_array_equal(np.array(found), np.array(wanted))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=8), st.integers(0, 99))
def test_a_record_in_one_slot_never_touches_another(places, seed):
    pool = RecordMemory(MINI, 4, GRANULE)
    held = {}
    for step, (slot, quarter) in enumerate(places):
        held[slot] = (quarter * GRANULE, put_record(pool, slot, quarter * GRANULE, seed + step))
    for slot, (lead_in, matrices) in held.items():
        views = pool.components(slot, lead_in)
        for name in COMPONENTS:
            np.testing.assert_array_equal(np.array(views[name].words), np.array(matrices[name][0]))
            np.testing.assert_array_equal(np.array(views[name].scales.astype(mx.float32)), np.array(matrices[name][1]))


def test_true_size_records_cost_two_pages_and_keep_no_float32_scales():
    assert slot_stride_bytes(FLASH_NEXT, PAGE_BYTES) == FLASH_NEXT.record_bytes + 2 * PAGE_BYTES
    assert slot_stride_bytes(MINI, GRANULE) == 45_056


def test_a_granule_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="granule 1000"):
        RecordMemory(MINI, 1, 1000)


def test_pages_are_aligned():
    pages = PageMemory(3, PAGE_BYTES)
    assert pages.pages.shape == (3, PAGE_BYTES)
    assert pages.pages.__array_interface__["data"][0] % PAGE_BYTES == 0
    assert pages.num_bytes == 3 * PAGE_BYTES
