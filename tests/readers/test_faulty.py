"""Each kind of fault does what it says, on the real clock and on a virtual one, and the reads around it are untouched."""

import errno

import numpy as np
import pytest

from workbench.readers import Disk, Fault, FaultKind, FaultyReader, PreadReader, RealClock, TimedReader, VirtualClock
from workbench.schema.envelopes import Envelope

PAGE = 4096
ENVELOPE = Envelope(name="e", device="none", source="made up", latency_us=100, stream_gbps=1, bandwidth_gbps=1, iops=1e6)


@pytest.fixture(params=["real", "virtual"])
def faulty(request, path):
    """A maker of readers with the given faults by position, and their clock."""
    made = []

    def make(**faults):
        clock = RealClock() if request.param == "real" else VirtualClock()
        inner = PreadReader() if request.param == "real" else TimedReader(PreadReader(), Disk(ENVELOPE), clock)
        plan = {int(position[1:]): fault for position, fault in faults.items()}
        made.append(FaultyReader(inner, plan.get, clock))
        return made[-1], made[-1].open_file(path), clock

    yield make
    for reader in made:
        reader.close()


def windows(count):
    return [(PAGE * 3 * i, PAGE) for i in range(count)]


def right(read, content):
    return np.array_equal(read.into, content[read.offset : read.offset + PAGE])


def test_without_faults_nothing_changes(faulty, content, make_reads, drain):
    reader, file, _ = faulty()
    reads = make_reads(file, windows(6))
    assert reader.submit(reads) == 6
    assert sorted(drain(reader)) == list(range(6))
    assert all(right(read, content) for read in reads)
    assert reader.num_faults == 0


def test_an_error_code(faulty, content, make_reads, drain):
    reader, file, _ = faulty(_1=Fault(kind=FaultKind.ERROR, code=errno.ENXIO))
    reads = make_reads(file, windows(3))
    reader.submit(reads)
    done = drain(reader)
    assert [done[key].error and done[key].error.errno for key in range(3)] == [None, errno.ENXIO, None]
    assert right(reads[0], content)
    assert right(reads[2], content)


def test_a_short_read(faulty, content, make_reads, drain):
    reader, file, _ = faulty(_0=Fault(kind=FaultKind.SHORT))
    reads = make_reads(file, windows(2))
    reader.submit(reads)
    done = drain(reader)
    assert "short read: 2048 of 4096" in str(done[0].error)
    assert not right(reads[0], content)
    assert done[1].error is None


def test_a_corrupted_byte_is_silent(faulty, content, make_reads, drain):
    reader, file, _ = faulty(_0=Fault(kind=FaultKind.CORRUPT))
    reads = make_reads(file, windows(2), need_bytes=1000)
    reader.submit(reads)
    done = drain(reader)
    assert done[0].error is None
    differs = np.flatnonzero(np.asarray(reads[0].into) != content[:PAGE])
    assert differs.tolist() == [999]
    assert right(reads[1], content)


def test_a_delay(faulty, content, make_reads, drain):
    reader, file, clock = faulty(_0=Fault(kind=FaultKind.DELAY, delay_ns=20_000_000))
    reads = make_reads(file, windows(2))
    start_ns = clock.now_ns()
    reader.submit(reads)
    done = drain(reader)
    assert done[0].ready_ns - start_ns >= 20_000_000
    assert done[0].submit_ns <= done[1].ready_ns < done[0].ready_ns
    assert all(right(read, content) for read in reads)


def test_a_hang_lasts_until_it_is_thawed(faulty, content, make_reads, drain):
    reader, file, _ = faulty(_0=Fault(kind=FaultKind.HANG))
    reads = make_reads(file, windows(2))
    reader.submit(reads)
    came = []
    while not came:
        came = reader.poll(0.001)
    assert [completion.key for completion in came] == [1]
    assert reader.poll(0.001) == []
    assert (reader.num_hung, reader.in_flight) == (1, 1)
    with pytest.raises(RuntimeError, match="poll with a timeout"):
        reader.poll(None)
    assert not np.any(reads[0].into)
    assert reader.thaw() == 1
    assert drain(reader)[0].error is None
    assert right(reads[0], content)


def test_completions_out_of_order(faulty, content, make_reads):
    reader, file, _ = faulty(_0=Fault(kind=FaultKind.REORDER))
    reader.submit(make_reads(file, windows(2)))
    order = []
    while reader.in_flight:
        order += [completion.key for completion in reader.poll(None)]
    assert order == [1, 0]


def test_a_reordered_read_with_nothing_behind_it_comes_all_the_same(faulty, make_reads, drain):
    reader, file, _ = faulty(_0=Fault(kind=FaultKind.REORDER))
    reader.submit(make_reads(file, windows(1)))
    assert sorted(drain(reader)) == [0]


def test_exhaustion_is_busy_once(faulty, content, make_reads, drain):
    reader, file, _ = faulty(_1=Fault(kind=FaultKind.EXHAUSTED))
    reads = make_reads(file, windows(3))
    assert reader.submit(reads) == 1
    assert reader.submit(reads[1:]) == 2
    assert sorted(drain(reader)) == [0, 1, 2]


def test_closing_forgets_what_hangs(faulty, nothing_leaks, make_reads):
    reader, file, _ = faulty(_0=Fault(kind=FaultKind.HANG), _1=Fault(kind=FaultKind.DELAY, delay_ns=10**12))
    reader.submit(make_reads(file, windows(3)))
    reader.close()
    assert reader.in_flight == 0
