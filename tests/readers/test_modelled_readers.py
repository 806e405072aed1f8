"""Readers whose time is not the disk's: none, a virtual clock, a slower disk."""

import time
from dataclasses import replace

import numpy as np
import pytest

from workbench.readers import (
    Disk,
    Fault,
    FaultKind,
    FaultyReader,
    NullReader,
    PacedReader,
    PreadReader,
    TimedReader,
    VirtualClock,
)
from workbench.readers.clock import RealClock
from workbench.schema.envelopes import Envelope

PAGE = 4096
SLOW = Envelope(
    name="slow", device="none", source="made up", latency_us=2000, stream_gbps=1, bandwidth_gbps=0.001 * PAGE / 1000, iops=1e6
)
"""2 ms a read alone, and one page each ms together."""


def test_null_is_done_at_once_and_touches_nothing(tmp_path, make_reads):
    with NullReader() as reader:
        file = reader.open_file(tmp_path / "nothing")
        reads = make_reads(file, [(0, PAGE)] * 3)
        assert reader.submit(reads) == 3
        assert reader.in_flight == 3
        assert [completion.key for completion in reader.poll()] == [0, 1, 2]
        assert reader.poll(None) == []
        assert not any(np.any(read.into) for read in reads)


@pytest.fixture
def timed(path):
    clock = VirtualClock()
    with TimedReader(PreadReader(), Disk(SLOW), clock, max_queued=4) as reader:
        yield reader, clock


def test_virtual_reads_come_when_the_model_says(timed, path, content, make_reads):
    reader, clock = timed
    file = reader.open_file(path)
    reads = make_reads(file, [(PAGE * i, PAGE) for i in range(5)])
    assert reader.submit(reads) == 4
    assert not np.any(reads[0].into), "bytes arrive when the read is done, not before"
    came = [(completion.key, completion.ready_ns, clock.now_ns()) for _ in range(4) for completion in reader.poll(None)]
    alone = 2_000_000 + PAGE
    # the pipe lets one page through each ms, the latency of each is 2 ms
    assert came == [(0, alone, alone), (1, alone, alone), (2, 3_000_000, 3_000_000), (3, 4_000_000, 4_000_000)]
    for read in reads[:4]:
        assert np.array_equal(read.into, content[read.offset : read.offset + PAGE])


def test_a_virtual_wait_passes_as_much_time_as_it_says(timed, path, make_reads):
    reader, clock = timed
    file = reader.open_file(path)
    assert reader.poll(None) == []
    reader.submit(make_reads(file, [(0, PAGE)]))
    assert reader.poll(0.001) == []
    assert clock.now_ns() == 1_000_000
    assert [completion.key for completion in reader.poll(0.5)] == [0]
    assert clock.now_ns() == 2_000_000 + PAGE
    assert reader.poll(0.0) == []


def test_errors_pass_through_a_virtual_clock(timed, path, make_reads):
    reader, _ = timed
    file = reader.open_file(path)
    reader.submit(make_reads(file, [(200 * PAGE, PAGE)]))
    assert "short read" in str(reader.poll(None)[0].error)


def test_paced_reads_come_no_earlier_than_the_model_says(path, content, make_reads, drain):
    with PacedReader(PreadReader(), Disk(SLOW)) as reader:
        file = reader.open_file(path)
        reads = make_reads(file, [(PAGE * i * 2, PAGE) for i in range(5)])
        start_ns = time.monotonic_ns()
        reader.submit(reads)
        # none, unless the machine stood still for as long as the modelled disk reads
        early = [*reader.poll(0.0), *reader.poll(0.0005)]
        assert reader.in_flight == 5 - len(early)
        done = {completion.key: completion for completion in early} | drain(reader)
    assert len(done) == 5
    for read in reads:
        completion = done[read.key]
        model_ns = max(2_000_000 + PAGE, (read.key + 1) * 1_000_000)
        assert completion.ready_ns - start_ns >= model_ns
        assert np.array_equal(read.into, content[read.offset : read.offset + PAGE])
    assert reader.num_reads == 5


def overdue(path, make_reads, drain, envelope, delay_ns):
    late = Fault(kind=FaultKind.DELAY, delay_ns=delay_ns)
    with PacedReader(FaultyReader(PreadReader(), lambda n: late), Disk(envelope)) as reader:
        file = reader.open_file(path)
        reader.submit(make_reads(file, [(0, PAGE), (2 * PAGE, PAGE)]))
        drain(reader)
        return reader.num_overdue


def test_a_disk_slower_than_the_model_is_counted(path, make_reads, drain):
    fast = Envelope(
        name="fast", device="none", source="made up", latency_us=0.001, stream_gbps=1e6, bandwidth_gbps=1e6, iops=1e12
    )
    patient = SLOW.model_copy(update={"latency_us": 200_000})
    assert overdue(path, make_reads, drain, fast, 5_000_000) == 2
    assert overdue(path, make_reads, drain, patient, 0) == 0


def test_clocks():
    clock = VirtualClock()
    clock.sleep_until(50)
    clock.sleep_until(20)
    assert clock.now_ns() == 50
    real = RealClock()
    until = real.now_ns() + 1_000_000
    real.sleep_until(until)
    assert real.now_ns() >= until


class Still(NullReader):
    """Done before time begins, so that the modelled disk alone decides when reads come."""

    def poll(self, timeout_s=0.0, at_least=1):
        return [replace(completion, ready_ns=0) for completion in super().poll(timeout_s)]


def paced_order(path, make_reads, depth):
    """Key and milliseconds of a page and of the last of four records before it, on a disk of one page a millisecond."""
    clock = VirtualClock()
    with PacedReader(Still(), Disk(SLOW), depth, clock) as reader:
        file = reader.open_file(path)
        reads = make_reads(file, [(0, 4 * PAGE)] * 4)
        (page,) = make_reads(file, [(0, PAGE)], queue="ple")
        page.key = 9
        reader.submit([*reads, page])
        done = []
        while reader.in_flight:
            done += reader.poll(None)
        return [(completion.key, round(completion.ready_ns / 1e6, 1)) for completion in done if completion.key in (3, 9)]


def test_a_lane_of_its_own_lets_a_page_pass_records_that_wait(path, make_reads):
    assert paced_order(path, make_reads, {"expert": 1, "ple": 1}) == [(9, 5.0), (3, 17.0)]
    assert paced_order(path, make_reads, None) == [(3, 16.0), (9, 17.0)]


def test_a_lane_starts_its_next_read_when_one_has_ended(path, make_reads):
    clock = VirtualClock()
    with PacedReader(Still(), Disk(SLOW), {"expert": 1}, clock) as reader:
        reader.submit(make_reads(reader.open_file(path), [(0, PAGE)] * 3))
        clock.sleep_until(10_000_000)
        times = [completion.ready_ns for completion in reader.poll(0.0)]
    alone = 2_000_000 + PAGE
    assert times[-1] >= 3 * alone
