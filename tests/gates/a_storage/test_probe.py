"""Gate A's loop that measures reads, on a small file."""

import numpy as np
import pytest

from workbench.errors import UnmetPrerequisite
from workbench.gates.a_storage.cells import (
    BUFFERED,
    PAGE,
    RECORD,
    Cell,
    Layout,
)  # fmt: skip
from workbench.gates.a_storage.file import probe_file
from workbench.gates.a_storage.probe import Probe, drive, missing_readers, open_kind
from workbench.readers import NullReader, Read, Reader
from workbench.units import MIB, PAGE_BYTES

# records that end within pages, like mini's
ODD = Layout(record_bytes=27_648, down_bytes=9_216, num_experts=16)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    with probe_file(tmp_path_factory.mktemp("disk"), 16 * MIB, seed=1) as path:
        yield path


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


RATES = ("load_alone_per_s", "load_beside_per_s")


@pytest.mark.parametrize("kind", ["mlx", "python"])
def test_a_load_counts_its_steps_alone_and_beside_reads(probe, kind):
    cell = Cell(reader=BUFFERED, size=PAGE, depth=1, beside=kind)
    # on a busy machine a step may take longer than the window
    row = next(row for tries in range(8) if all((row := probe.measure(cell, 0.02 * 2**tries))[name] for name in RATES))
    assert all(row[name] > 0 for name in RATES)
    assert row["cpu_us_per_read"] is None


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
