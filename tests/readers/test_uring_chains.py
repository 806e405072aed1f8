"""Many small reads go to the kernel in chains: it refills a queue itself. None of that may show."""

import ctypes
import errno
import threading
import time

import pytest

from workbench.readers import UringConfig, UringReader
from workbench.readers.ring import LAST, OP_READ, chained, entry

PAGE = 4096
NUM_READS = 500
"""Enough for chains of the full length in a queue of depth 2."""


@pytest.fixture(params=[1, 2, 16])
def narrow(request, uncached_path):
    with UringReader(UringConfig(depth={"expert": request.param}, coalesce_bytes=0)) as made:
        made.open_file(uncached_path)
        yield made


def windows(bad=()):
    return [(PAGE * 90 if number in bad else PAGE * (number * 7 % 60), PAGE) for number in range(NUM_READS)]


def test_every_read_of_a_long_queue_is_right(narrow, content, make_reads, drain):
    reads = make_reads(0, windows())
    assert narrow.submit(reads) == NUM_READS
    done = drain(narrow)
    assert sorted(done) == list(range(NUM_READS))
    for read in reads:
        assert done[read.key].error is None
        assert bytes(read.into) == content[read.offset : read.offset + PAGE].tobytes()


def test_a_read_that_fails_takes_nobody_else_of_its_chain_along(narrow, make_reads, drain):
    bad = {0, 13, 14, 200, NUM_READS - 1}
    narrow.submit(make_reads(0, windows(bad)))
    done = drain(narrow)
    assert {key for key, completion in done.items() if completion.error is not None} == bad


def test_a_large_read_among_small_ones_arrives(narrow, content, make_reads, drain):
    sizes = [PAGE, PAGE, 40 * PAGE, PAGE, 20 * PAGE, 20 * PAGE, PAGE] * 20
    reads = make_reads(0, [(PAGE * (number % 20), size) for number, size in enumerate(sizes)])
    narrow.submit(reads)
    assert all(completion.error is None for completion in drain(narrow).values())
    assert all(bytes(read.into) == content[read.offset : read.offset + read.num_bytes].tobytes() for read in reads)


def test_no_more_chains_fly_than_the_queue_is_deep(narrow, make_reads):
    narrow.submit(make_reads(0, windows()))
    queue = narrow._queues["expert"]
    while narrow.in_flight:
        assert queue.chains_in_flight <= queue.depth
        narrow.poll(None)
    assert queue.chains_in_flight == narrow._at_kernel == 0


def test_a_poll_that_can_do_nothing_with_fewer_sleeps_for_more(narrow, make_reads):
    narrow.submit(make_reads(0, windows()))
    sizes = []
    while narrow.in_flight:
        sizes.append(len(narrow.poll(None, narrow.in_flight)))
    assert sum(sizes) == NUM_READS
    assert min(sizes[:-1]) >= 64


def test_closing_with_a_long_queue_ends_it(uncached_path, make_reads, nothing_leaks):
    with UringReader(UringConfig(depth={"expert": 2}, coalesce_bytes=0)) as reader:
        reader.open_file(uncached_path)
        reader.submit(make_reads(0, windows()))
    assert reader.in_flight == 0


def test_a_chain_links_all_but_its_last_entry():
    made = chained([entry(OP_READ, number, 3, 0, 0, PAGE) for number in range(7)], 3)
    entries = [made[at : at + 64] for at in range(0, len(made), 64)]
    assert [one[1] for one in entries] == [8, 8, 0, 8, 8, 0, 0]
    tokens = [int.from_bytes(one[32:40], "little") for one in entries]
    assert [token & ~LAST for token in tokens] == list(range(7))
    assert [token >= LAST for token in tokens] == [False, False, True, False, False, True, True]


class _Starved:
    """The kernel's calls, of which the first few that submit fail as they do where it has no memory."""

    def __init__(self, library, failures):
        self._library, self.failures = library, failures

    def syscall(self, number, descriptor, to_submit, *rest):
        if to_submit and self.failures:
            self.failures -= 1
            ctypes.set_errno(errno.EAGAIN)
            return -1
        return self._library.syscall(number, descriptor, to_submit, *rest)


def in_time(work, seconds=20):
    """Runs `work`; one that waits for ever fails instead of hanging."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "it waits for ever"


@pytest.mark.parametrize("failures", [1, 4])
@pytest.mark.parametrize("watch", [True, False])
def test_reads_that_the_kernel_had_no_memory_for_are_handed_over_again(uncached_path, make_reads, watch, failures):
    reader, done = UringReader(UringConfig(watch=watch, spin_us=0)), []
    reader.open_file(uncached_path)
    starved = reader._ring._keep_gil = reader._ring._free_gil = _Starved(reader._ring._free_gil, failures)
    reader.submit(make_reads(0, [(0, PAGE)]))
    in_time(lambda: done.extend(reader.poll(None)))
    assert [completion.key for completion in done] == [0]
    assert starved.failures == 0
    reader.close()


def test_closing_waits_for_what_the_kernel_takes_late(uncached_path, make_reads):
    reader = UringReader(UringConfig(watch=False))
    reader.open_file(uncached_path)
    reader._ring._keep_gil = reader._ring._free_gil = _Starved(reader._ring._free_gil, 3)
    reader.submit(make_reads(0, [(0, PAGE)]))
    in_time(reader.close)


def test_a_watcher_that_fails_does_not_keep_the_lock(narrow, make_reads, drain, monkeypatch):
    reader, file = narrow, 0
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    collect, calls = reader._collect, []

    def fail_once():
        calls.append(threading.current_thread())
        if calls[-1] is reader._watcher and sum(each is reader._watcher for each in calls) == 1:
            raise OSError(errno.EIO, "no more")
        collect()

    reader._collect = fail_once
    reader.submit(make_reads(file, [(0, 4096)]))
    deadline = time.monotonic() + 10
    while reader._watcher.is_alive() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert not reader._watcher.is_alive()
    assert set(drain(reader)) == {0}
