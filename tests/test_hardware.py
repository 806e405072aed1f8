import fcntl
import mmap
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from workbench import hardware
from workbench.readers.files import FileTable, aligned_buffer
from workbench.units import MIB

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
needs_huge_pages = pytest.mark.skipif(
    not HUGE_PAGES.exists() or "[never]" in HUGE_PAGES.read_text(), reason="the kernel has no huge pages or they are off"
)
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="drops pages by posix_fadvise")


@pytest.fixture
def big_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(os.urandom(4 * MIB))
    return path


def test_the_machine_is_described_without_its_name():
    machine = hardware.machine()
    assert machine.num_cores == os.cpu_count()
    assert machine.memory_bytes > 256 * MIB
    assert machine.cpu
    assert len(machine.digest) == 12
    assert os.uname().nodename not in repr(machine).split("'")


def test_a_file_just_written_is_cached(big_file):
    assert hardware.cached_fraction(big_file) == 1.0


@needs_linux
def test_dropping_a_file_empties_the_page_cache_and_a_read_fills_it(big_file):
    hardware.drop_from_page_cache(big_file)
    assert hardware.cached_fraction(big_file) == 0.0
    with big_file.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        file.read(MIB)
    assert hardware.cached_fraction(big_file) == pytest.approx(0.25, abs=0.01)


@pytest.mark.apple("dropping a file from the page cache leaves none of its pages there, as mincore sees it")
def test_dropping_a_file_empties_a_macs_page_cache(big_file):
    big_file.read_bytes()
    hardware.drop_from_page_cache(big_file)
    assert hardware.cached_fraction(big_file) == 0.0


def test_where_a_file_can_only_be_invalidated_it_keeps_its_content(big_file, monkeypatch):
    monkeypatch.delattr(os, "posix_fadvise", raising=False)
    content = big_file.read_bytes()
    hardware.drop_from_page_cache(big_file)
    assert big_file.read_bytes() == content


@needs_linux
def test_an_uncached_read_leaves_nothing_behind(big_file):
    hardware.drop_from_page_cache(big_file)
    table, buffer = FileTable(uncached=True), aligned_buffer(MIB)
    assert os.preadv(table.descriptor(table.open(big_file)), [buffer], MIB) == MIB
    table.close()
    assert buffer.tobytes() == big_file.read_bytes()[MIB : 2 * MIB]
    # the comparison above cached the file; what is checked is that a fresh uncached read does not
    hardware.drop_from_page_cache(big_file)
    table = FileTable(uncached=True)
    os.preadv(table.descriptor(table.open(big_file)), [buffer], 0)
    table.close()
    assert hardware.cached_fraction(big_file) == 0.0


@pytest.mark.apple("F_NOCACHE reads leave a file out of the page cache, as mincore sees it")
def test_nocache_reads_stay_out_of_the_page_cache(tmp_path):
    path = tmp_path / "file"
    with path.open("wb") as file:
        fcntl.fcntl(file, fcntl.F_NOCACHE, 1)
        file.write(os.urandom(4 * MIB))
    assert hardware.cached_fraction(path) < 0.1
    table, buffer = FileTable(uncached=True), aligned_buffer(4 * MIB)
    assert os.preadv(table.descriptor(table.open(path)), [buffer], 0) == 4 * MIB
    table.close()
    assert hardware.cached_fraction(path) < 0.1


def test_an_empty_file_is_not_cached(tmp_path):
    (tmp_path / "empty").touch()
    assert hardware.cached_fraction(tmp_path / "empty") == 0.0


def test_peak_memory_never_falls():
    before = hardware.peak_rss_bytes()
    held = mmap.mmap(-1, 64 * MIB)
    held.write(b"\1" * (64 * MIB))
    during = hardware.peak_rss_bytes()
    held.close()
    assert 10 * MIB < before <= during <= hardware.peak_rss_bytes() < hardware.machine().memory_bytes


def test_peak_memory_grows_by_what_a_process_touches_whatever_started_it():
    script = (
        "from workbench.hardware import peak_rss_bytes as peak; before = peak(); held = b'\\1' * (300 << 20); "
        "print(peak() - before)"
    )
    grown = int(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout)
    assert 290 * MIB < grown < 400 * MIB


@needs_huge_pages
def test_memory_in_use_moves_to_huge_pages_and_keeps_its_content():
    content = np.random.default_rng(0).integers(0, 256, 8 * MIB, dtype=np.uint8)
    memory = np.frombuffer(mmap.mmap(-1, len(content), flags=mmap.MAP_PRIVATE | mmap.MAP_ANON), dtype=np.uint8)
    memory[:] = content
    start = memory.ctypes.data
    before = hardware.huge_page_bytes(start, len(memory))
    hardware.prefer_huge_pages(start + 100, len(memory) - 100)
    assert before < 6 * MIB <= hardware.huge_page_bytes(start, len(memory))
    assert np.array_equal(memory, content)


@needs_huge_pages
def test_what_readers_fill_lies_on_huge_pages():
    memory = aligned_buffer(8 * MIB)
    memory[:] = 1
    assert hardware.huge_page_bytes(memory.ctypes.data, len(memory)) >= 6 * MIB


@pytest.mark.parametrize("num_bytes", [0, 1, 4096, 5000])
def test_little_memory_stays_where_it_is(num_bytes):
    memory = np.full(5000, 7, dtype=np.uint8)
    hardware.prefer_huge_pages(memory.ctypes.data, num_bytes)
    assert set(memory) == {7}


@pytest.mark.apple("ru_maxrss counts bytes on macOS, so memory budgets are checked in bytes")
def test_peak_memory_of_a_mac_is_at_least_what_is_resident():
    assert hardware.peak_rss_bytes() >= psutil.Process().memory_info().rss * 0.9


def test_shares_and_totals_are_plausible(tmp_path):
    assert 0 <= hardware.memory_pressure() <= 1
    assert hardware.swap_out_bytes() >= 0


def test_free_space_of_a_folder_to_be_is_that_of_its_parent(tmp_path):
    ahead = hardware.free_disk_bytes(tmp_path / "not" / "there" / "yet")
    assert ahead == pytest.approx(hardware.free_disk_bytes(tmp_path), rel=0.2)
