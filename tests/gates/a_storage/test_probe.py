"""The probe file, the layout and the measuring loop of Gate A, on small files."""

import numpy as np
import pytest

from workbench.errors import BadInput, UnmetPrerequisite
from workbench.gates.a_storage import file
from workbench.gates.a_storage.cells import (
    BUFFERED,
    DOWN_SIZE,
    GATE_UP,
    MMAP,
    PAGE,
    RECORD,
    SEQUENTIAL,
    SIZES,
    SPLIT,
    Cell,
    Layout,
    between,
    grid,
)  # fmt: skip
from workbench.gates.a_storage.file import probe_file
from workbench.gates.a_storage.load import running
from workbench.gates.a_storage.probe import Probe, drive, missing_readers, open_kind
from workbench.geometry import FLASH_NEXT
from workbench.readers import NullReader, Read, Reader
from workbench.units import MIB, PAGE_BYTES

# records that end within pages, like mini's
ODD = Layout(record_bytes=27_648, down_bytes=9_216, num_experts=16)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    with probe_file(tmp_path_factory.mktemp("disk"), 16 * MIB, seed=1) as path:
        yield path


def test_the_file_is_incompressible_whole_and_gone_afterwards(tmp_path):
    with probe_file(tmp_path, 16 * MIB, seed=1) as path:
        content = np.fromfile(path, dtype=np.uint8)
        assert len(content) == 16 * MIB
        # all pages differ, and no byte value is rarer than chance allows
        assert len({page.tobytes() for page in content.reshape(-1, PAGE_BYTES)}) == 16 * MIB // PAGE_BYTES
        assert np.bincount(content, minlength=256).min() > 0.98 * len(content) / 256
        assert [entry.name for entry in tmp_path.iterdir() if entry.suffix == ".part"] == []
    assert list(tmp_path.iterdir()) == []


def test_a_kept_file_is_used_again_unless_it_is_another(tmp_path):
    with probe_file(tmp_path, 8 * MIB, seed=1, keep=True) as path:
        made = path.stat().st_ino
    with probe_file(tmp_path, 8 * MIB, seed=1, keep=True) as path:
        assert path.stat().st_ino == made
    path.write_bytes(bytes(8 * MIB))
    with probe_file(tmp_path, 8 * MIB, seed=1) as path:
        assert path.read_bytes()[:4096] != bytes(4096)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_interrupted_write_leaves_nothing(tmp_path, monkeypatch, error):
    def stop(base, number):
        raise error

    monkeypatch.setattr(file, "_chunk", stop)
    with pytest.raises(error), probe_file(tmp_path, 8 * MIB, seed=1):
        pass
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_run_removes_even_a_whole_file(tmp_path):
    with pytest.raises(KeyboardInterrupt), probe_file(tmp_path, 8 * MIB, seed=1):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_one_run_at_a_time_and_only_where_there_is_room(tmp_path, monkeypatch):
    with (
        probe_file(tmp_path, 8 * MIB, seed=1),
        pytest.raises(BadInput, match="another run"),
        probe_file(tmp_path, 8 * MIB, seed=1),
    ):
        pass
    monkeypatch.setattr(file, "free_disk_bytes", lambda _: 100 * MIB)
    with pytest.raises(UnmetPrerequisite, match="the probe file needs"), probe_file(tmp_path, 8 * MIB, seed=1):
        pass
    monkeypatch.undo()
    with pytest.raises(BadInput, match="multiple of 8 MiB"), probe_file(tmp_path, 9 * MIB, seed=1):
        pass


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


class Counting(Reader):
    """Passes reads on, remembers them and how many were in flight."""

    def __init__(self, inner):
        self.inner, self.seen, self.deepest = inner, [], 0

    def open_file(self, path):
        return self.inner.open_file(path)

    def submit(self, reads):
        self.seen += [(read.offset, read.num_bytes, read.need_bytes) for read in reads]
        taken = self.inner.submit(reads)
        self.deepest = max(self.deepest, self.inner.in_flight)
        return taken

    def poll(self, timeout_s=0.0):
        return self.inner.poll(timeout_s)

    def close(self):
        self.inner.close()

    @property
    def in_flight(self):
        return self.inner.in_flight


@pytest.mark.parametrize("depth", [1, 3, 50])
def test_the_loop_reads_every_window_once_at_the_depth_asked_for(path, depth):
    windows = ODD.windows(RECORD, 0, MIB, np.random.default_rng(0))
    memory = np.zeros(depth * 9 * PAGE_BYTES, dtype=np.uint8)
    with Counting(NullReader()) as reader:
        times = drive(reader, reader.open_file(path), windows, memory, depth, 60.0)
    columns = (windows.offsets, windows.num_bytes, windows.need_bytes)
    assert reader.seen == list(zip(*(column.tolist() for column in columns), strict=True))
    assert reader.deepest == min(depth, len(windows.offsets))
    assert times.physical_bytes == windows.num_bytes.sum()
    assert times.logical_bytes == windows.logical_bytes.sum()
    assert len(times.to_ready_ns) == len(times.to_seen_ns) == len(windows.offsets)


def test_time_that_is_over_still_allows_three_reads_a_place(path):
    windows = ODD.windows(PAGE, 0, MIB, np.random.default_rng(0))
    with NullReader() as reader:
        times = drive(reader, reader.open_file(path), windows, np.zeros(4 * PAGE_BYTES, dtype=np.uint8), 4, 0.0)
    assert 12 <= len(times.to_ready_ns) < 20


def test_a_failed_read_ends_the_run(path):
    windows = ODD.windows_of(PAGE, path.stat().st_size, [0])
    with open_kind(BUFFERED, 1) as reader, pytest.raises(OSError, match="the file ends there"):
        drive(reader, reader.open_file(path), windows, np.zeros(PAGE_BYTES, dtype=np.uint8), 1, 1.0)


@pytest.fixture
def probe(path):
    return Probe.on(path, ODD, 16 * MIB, 0)


def test_cold_runs_start_with_nothing_in_memory_and_warm_ones_with_everything(probe):
    assert probe.measure(Cell(reader=BUFFERED, size=PAGE, depth=2, cache="warm"), 0.001)["cached_before"] == 1.0
    row = probe.measure(Cell(reader=BUFFERED, size=PAGE, depth=2), 0.001)
    assert row["cached_before"] == 0.0
    assert row["reads"] >= 6
    assert row["physical_bytes"] == row["reads"] * PAGE_BYTES
    assert row["submit_to_seen_p50_us"] >= row["p50_us"] > 0
    assert row["cpu_us_per_read"] > 0
    assert row["load_beside_per_s"] is None


@pytest.mark.parametrize("kind", ["mlx", "python"])
def test_a_load_counts_its_steps_alone_and_beside_reads(probe, kind):
    row = probe.measure(Cell(reader=BUFFERED, size=PAGE, depth=1, beside=kind), 0.02)
    assert row["load_alone_per_s"] > 0
    assert row["load_beside_per_s"] > 0
    assert row["cpu_us_per_read"] is None


def test_a_load_ends_with_its_block():
    with running("python") as load:
        pass
    steps = load.steps
    assert steps > 0
    assert load.rate_for(0.01) is None
    assert load.steps == steps


def test_a_reader_that_this_file_or_machine_lacks_is_named(path, monkeypatch):
    from workbench.gates.a_storage import probe as probe_module

    def refuse(kind, depth, coalesce_bytes=0):
        if kind == "uring":
            raise UnmetPrerequisite("no io_uring here")
        return NullReader()

    monkeypatch.setattr(probe_module, "open_kind", refuse)
    assert missing_readers(path) == {"uring": "no io_uring here"}


def test_reads_of_a_pass_land_in_memory_that_is_theirs(probe):
    places = probe._spread(ODD.windows_of(RECORD, 0, range(4)))
    assert [len(place) for place in places] == ODD.windows_of(RECORD, 0, range(4)).num_bytes.tolist()
    assert all(isinstance(Read(0, 0, 0, len(place), place).into, np.ndarray) for place in places)
    assert probe.timed_pass(ODD.windows_of(RECORD, 0, range(4)), BUFFERED, 2, 4 * MIB)[0] > 0
