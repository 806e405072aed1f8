import numpy as np
import pytest

from workbench.gates.a_storage.cells import (
    DOWN_SIZE,
    GATE_UP,
    MMAP,
    PAGE,
    RECORD,
    SEQUENTIAL,
    SIZES,
    SPLIT,
    Layout,
    between,
    grid,
)  # fmt: skip
from workbench.geometry import FLASH_NEXT
from workbench.units import MIB, PAGE_BYTES

# records that end within pages, like mini's
ODD = Layout(record_bytes=27_648, down_bytes=9_216, num_experts=16)


@pytest.mark.parametrize("size", [*SIZES, SPLIT])
@pytest.mark.parametrize("layout", [ODD, Layout.of(FLASH_NEXT)], ids=["odd", "flash-next"])
def test_windows_are_pages_that_cover_what_is_asked_for_within_the_part(layout, size):
    start, num_bytes = 3 * MIB, 24 * MIB
    windows = layout.windows(size, start, num_bytes, np.random.default_rng(0))
    assert len(windows.offsets) > 0
    assert (windows.offsets % PAGE_BYTES == 0).all()
    assert (windows.num_bytes % PAGE_BYTES == 0).all()
    assert (windows.num_bytes <= layout.window_bytes(size)).all()
    assert (windows.need_bytes <= windows.num_bytes).all()
    assert (windows.logical_bytes <= windows.need_bytes).all()
    assert windows.offsets.min() >= start
    assert (windows.offsets + windows.need_bytes).max() <= start + num_bytes
    assert len(set(windows.offsets.tolist())) > 0.9 * len(windows.offsets)


def test_flash_next_records_are_whole_pages_and_components_follow_each_other():
    layout = Layout.of(FLASH_NEXT)
    assert (layout.record_bytes, layout.window_bytes(RECORD)) == (2_764_800, 2_764_800)
    gate_up, down = (layout.windows_of(size, 0, [5]) for size in (GATE_UP, DOWN_SIZE))
    assert gate_up.offsets[0] + gate_up.num_bytes[0] == down.offsets[0] == 5 * 2_764_800 + 1_843_200
    both = layout.windows_of(SPLIT, 0, [5])
    assert both.offsets.tolist() == [gate_up.offsets[0], down.offsets[0]]
    assert both.logical_bytes.sum() == layout.windows_of(RECORD, 0, [5]).logical_bytes.sum()


def test_sequential_windows_follow_each_other_and_others_do_not():
    rng = np.random.default_rng(0)
    assert (np.diff(ODD.windows(SEQUENTIAL, 0, 64 * MIB, rng).offsets) == 8 * MIB).all()
    assert (np.diff(ODD.windows(PAGE, 0, MIB, rng).offsets) < 0).any()
    extent = ODD.extent(MIB, 20 * MIB + 5)
    assert extent.offsets.tolist() == [MIB, 9 * MIB, 17 * MIB]
    assert extent.logical_bytes.sum() == 20 * MIB + 5
    assert (extent.num_bytes % PAGE_BYTES == 0).all()


def test_the_grid_keeps_within_memory_and_mapped_memory_has_no_depth():
    layout = Layout.of(FLASH_NEXT)
    cells = grid(("uring", MMAP), (PAGE, RECORD), (1, 4, 64), layout, 96 * MIB)
    assert {(cell.size, cell.depth) for cell in cells if cell.reader == "uring"} == {
        (PAGE, 1), (PAGE, 4), (PAGE, 64), (RECORD, 1), (RECORD, 4),
    }  # fmt: skip
    assert {cell.depth for cell in cells if cell.reader == MMAP} == {1}
    assert between(1, 1, 64) == [1, 2]
    assert between(4, 16, 64) == [2, 4, 8, 16, 32]
    assert between(16, 16, 24) == [8, 16, 24]
