import fcntl
import mmap
import os
import subprocess
import sys

import psutil
import pytest

from workbench import hardware
from workbench.readers.files import FileTable, aligned_buffer
from workbench.units import MIB

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


@pytest.mark.apple("ru_maxrss counts bytes on macOS, so memory budgets are checked in bytes")
def test_peak_memory_of_a_mac_is_at_least_what_is_resident():
    assert hardware.peak_rss_bytes() >= psutil.Process().memory_info().rss * 0.9


def test_shares_and_totals_are_plausible(tmp_path):
    assert 0 <= hardware.memory_pressure() <= 1
    assert hardware.swap_out_bytes() >= 0


def test_free_space_of_a_folder_to_be_is_that_of_its_parent(tmp_path):
    ahead = hardware.free_disk_bytes(tmp_path / "not" / "there" / "yet")
    assert ahead == pytest.approx(hardware.free_disk_bytes(tmp_path), rel=0.2)
