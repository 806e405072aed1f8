"""What every reader of real files must do, whatever way it reads."""

import os
import threading
import time

import numpy as np
import pytest

from workbench.errors import BadInput
from workbench.readers import PreadConfig, PreadReader, Read, UringConfig, UringReader, aligned_buffer
from workbench.readers.base import Checksum

PAGE = 4096


def test_bytes_and_keys_are_right(reader, path, content, make_reads, drain):
    file = reader.open_file(path)
    windows = [(PAGE * (i * 7 % 60), PAGE * (1 + i % 3)) for i in range(40)]
    reads = make_reads(file, windows)
    assert reader.submit(reads) == 40
    done = drain(reader)
    assert sorted(done) == list(range(40))
    for read in reads:
        completion = done[read.key]
        assert completion.error is None
        assert completion.submit_ns <= completion.ready_ns
        assert np.array_equal(read.into, content[read.offset : read.offset + read.num_bytes])


def test_large_reads_arrive_among_small_ones(reader, tmp_path, make_reads, drain):
    content = np.random.default_rng(3).integers(0, 256, 300 * PAGE, dtype=np.uint8)
    (tmp_path / "large.bin").write_bytes(content.tobytes())
    file = reader.open_file(tmp_path / "large.bin")
    reads = make_reads(file, [(0, PAGE), (2 * PAGE, 100 * PAGE), (0, 300 * PAGE), (150 * PAGE, PAGE)])
    assert reader.submit(reads) == 4
    assert all(completion.error is None for completion in drain(reader).values())
    for read in reads:
        assert np.array_equal(read.into, content[read.offset : read.offset + read.num_bytes])


def test_a_window_may_run_past_the_end_of_the_file(reader, path, content, make_reads, drain):
    file = reader.open_file(path)
    reads = make_reads(file, [(63 * PAGE, 2 * PAGE)], need_bytes=PAGE + 1000)
    reader.submit(reads)
    assert drain(reader)[0].error is None
    assert np.array_equal(reads[0].into[: PAGE + 1000], content[63 * PAGE :])


@pytest.mark.parametrize(("offset", "need"), [(63 * PAGE, PAGE + 1001), (80 * PAGE, 1)])
def test_demanded_bytes_past_the_end_are_an_error(reader, path, make_reads, drain, offset, need):
    file = reader.open_file(path)
    reader.submit(make_reads(file, [(offset, 2 * PAGE)], need_bytes=need))
    assert "short read" in str(drain(reader)[0].error)


def test_adjacent_reads_come_together(reader, path, content, make_reads, drain):
    file = reader.open_file(path)
    reads = make_reads(file, [(PAGE * i, PAGE) for i in (3, 4, 5, 6, 20, 21, 9)])
    reader.submit(reads)
    assert all(completion.error is None for completion in drain(reader).values())
    for read in reads:
        assert np.array_equal(read.into, content[read.offset : read.offset + PAGE])


def test_the_last_of_adjacent_reads_may_be_short(reader, path, content, make_reads, drain):
    file = reader.open_file(path)
    reads = make_reads(file, [(PAGE * i, PAGE) for i in (62, 63, 64, 65)])
    reader.submit(reads)
    done = drain(reader)
    assert [done[key].error is None for key in range(4)] == [True, True, False, False]
    assert np.array_equal(reads[1].into, content[63 * PAGE : 64 * PAGE])


def test_lanes_do_not_wait_for_each_other(reader, path, make_reads, drain):
    file = reader.open_file(path)
    reads = make_reads(file, [(0, PAGE)] * 50) + make_reads(file, [(PAGE, PAGE)] * 50, queue="ple")
    for key, read in enumerate(reads):
        read.key = key
    assert reader.submit(reads) == 100
    assert len(drain(reader)) == 100


def test_a_lane_that_is_not_there_takes_nothing(reader, path, make_reads, request):
    if "mmap" in request.node.name:
        pytest.skip("the control has no lanes")
    file = reader.open_file(path)
    with pytest.raises(KeyError, match="elsewhere"):
        reader.submit(make_reads(file, [(0, PAGE)]) + make_reads(file, [(0, PAGE)], queue="elsewhere"))
    assert reader.in_flight == 0
    assert reader.poll(None) == []


def test_sums_are_checked_where_bytes_arrive(reader, path, content, make_reads, drain):
    import zlib

    file = reader.open_file(path)
    good = Checksum(100, 3000, zlib.crc32(content[100:3100].tobytes()))
    bad = Checksum(100, 3000, good.crc32 ^ 1)
    large = Checksum(0, 40 * PAGE, zlib.crc32(content[: 40 * PAGE].tobytes()))
    reads = make_reads(file, [(0, PAGE), (0, PAGE), (0, 40 * PAGE), (0, 40 * PAGE)])
    for read, checksums in zip(reads, [(good,), (good, bad), (large,), (large, bad)], strict=True):
        read.checksums = checksums
    reader.submit(reads)
    done = drain(reader)
    assert [done[key].error is None for key in range(4)] == [True, False, True, False]
    assert "checksum differs in bytes 100..3100" in str(done[3].error)
    assert done[2].check_ns > 0


def test_polling_does_not_wait_when_told_so(reader, path, make_reads, drain):
    assert reader.poll(0.0) == []
    assert reader.poll(None) == [], "with nothing in flight it returns at once"
    file = reader.open_file(path)
    reader.submit(make_reads(file, [(0, PAGE)]))
    reader.poll(0.0)
    drain(reader)
    assert reader.in_flight == 0


def test_a_file_that_is_not_there(reader, tmp_path):
    with pytest.raises(BadInput, match="can't be"):
        reader.open_file(tmp_path / "nothing")


def test_nothing_is_left_behind(nothing_leaks, reader, path, make_reads, drain):
    file = reader.open_file(path)
    reader.submit(make_reads(file, [(PAGE * i, PAGE) for i in range(30)]))
    drain(reader)
    reader.close()
    reader.close()


def test_closing_with_reads_in_flight_ends_them(nothing_leaks, reader, path, make_reads):
    file = reader.open_file(path)
    reads = make_reads(file, [(0, 60 * PAGE)] * 20)
    reader.submit(reads)
    reader.close()
    before = [bytes(read.into) for read in reads]
    time.sleep(0.01)
    assert [bytes(read.into) for read in reads] == before, "nothing writes after close"


@pytest.mark.parametrize(
    "make",
    [lambda: PreadReader(PreadConfig(max_queued=5)), lambda: UringReader(UringConfig(max_queued=5))],
    ids=["pread", "uring"],
)
def test_a_full_reader_takes_what_fits(make, path, make_reads, drain):
    with make() as reader:
        file = reader.open_file(path)
        reads = make_reads(file, [(PAGE * 2 * i, PAGE) for i in range(8)])
        assert reader.submit(reads) == 5
        assert reader.submit(reads[5:]) == 0
        assert sorted(drain(reader)) == [0, 1, 2, 3, 4]
        assert reader.submit(reads[5:]) == 3
        drain(reader)


@pytest.mark.parametrize("make", [lambda: PreadReader(PreadConfig(uncached=True)), UringReader], ids=["pread", "uring"])
def test_an_unaligned_uncached_read_says_so(make, path, drain):
    with make() as reader:
        file = reader.open_file(path)
        reader.submit([Read(0, file, 100, PAGE, memoryview(aligned_buffer(PAGE)))])
        assert "whole pages" in str(drain(reader)[0].error)


def test_a_watched_reader_stamps_what_comes_while_nobody_polls(path, make_reads, drain):
    with UringReader(UringConfig(depth={"expert": 1})) as reader:
        file = reader.open_file(path)
        reader.submit(make_reads(file, [(PAGE * 2 * i, PAGE) for i in range(20)]))
        polled = threading.Event()
        for _ in range(400):
            if len(reader._done) == 20:
                break
            polled.wait(0.01)
        asked_ns = time.monotonic_ns()
        done = drain(reader)
    assert len(done) == 20, "one at a time, so the watcher refilled the lane"
    assert all(completion.ready_ns < asked_ns for completion in done.values())


def test_a_file_that_shrinks_under_a_reader_is_an_error(reader, tmp_path, make_reads, drain, request):
    if "mmap" in request.node.name:
        pytest.skip("a mapped page past the end is a bus error: one more reason why mmap is only the control")
    shrinking = tmp_path / "shrinking.bin"
    shrinking.write_bytes(bytes(8 * PAGE))
    file = reader.open_file(shrinking)
    os.truncate(shrinking, PAGE)
    reader.submit(make_reads(file, [(4 * PAGE, PAGE)]))
    assert "the file ends there" in str(drain(reader)[0].error)


@pytest.mark.parametrize("config", [PreadConfig, UringConfig])
def test_a_lane_without_depth_is_refused(config):
    name = "threads" if config is PreadConfig else "depth"
    with pytest.raises(ValueError, match="at least"):
        config(**{name: {"expert": 0}})
