"""Depth and priority are decided in one place, the scheduler: in the configuration that ships, with every reader."""

from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.loading.transfer import Transfer
from workbench.policies import make
from workbench.readers import Disk, PacedReader, PreadConfig, PreadReader, RealClock, TimedReader, VirtualClock
from workbench.readers.base import Read
from workbench.readers.ring import ring_refusal
from workbench.readers.uring import UringConfig, UringReader
from workbench.runtime.config import RuntimeConfig
from workbench.runtime.streamed import disk_depth, scheduler_config
from workbench.scheduling import Origin, Pool, PredictedKey, Priority, Scheduler, SlotTable
from workbench.schema import EventLog
from workbench.schema.envelopes import load_envelope
from workbench.units import PAGE_BYTES

DEPTH = 4
NUM_KEYS = 64
P0, P1, P2, P3 = Priority


class Pages:
    """Page-sized reads of one file; notes the class of each read that is started."""

    def __init__(self, file):
        self.file = file
        self.started = []
        raw = np.zeros((NUM_KEYS + 1) * PAGE_BYTES, np.uint8)
        shift = -raw.__array_interface__["data"][0] % PAGE_BYTES
        self.memory = raw[shift:][: NUM_KEYS * PAGE_BYTES].reshape(NUM_KEYS, PAGE_BYTES)

    def read(self, order):
        self.started.append((order.ticket.key, order.priority))
        return Read(order.number, self.file, order.ticket.key * PAGE_BYTES, PAGE_BYTES, self.memory[order.slot])

    def arrived(self, order):
        pass


def build(reader, file, clock, config):
    """An I/O core with the lanes and budgets of a configuration, on one pool of pages."""
    slots = SlotTable(NUM_KEYS, make("lru", capacity=NUM_KEYS))
    pool = Pool(name="expert", digest="", slots=slots, sizes=lambda key, bits: (PAGE_BYTES, PAGE_BYTES))
    pages = Pages(file)
    transfer = Transfer(
        Scheduler([pool], scheduler_config(config)), reader, {"expert": pages}, EventLog(), clock, lambda origin: None
    )
    return transfer, pages


def uring(config):
    if (refusal := ring_refusal()) is not None:
        pytest.skip(refusal)
    return UringReader(UringConfig(depth=disk_depth(config), uncached=False))


def pread(config):
    return PreadReader(PreadConfig(threads=disk_depth(config)))


READERS = {
    "uring": uring,
    "pread": pread,
    "paced uring": lambda config: PacedReader(uring(config), Disk(load_envelope("m4-pro-512gb"))),
    "paced pread": lambda config: PacedReader(pread(config), Disk(load_envelope("m4-pro-512gb"))),
}


@contextmanager
def opened(name, config, path):
    with READERS[name](config) as reader:
        yield build(reader, reader.open_file(path), RealClock(), config)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "pages"
    path.write_bytes(bytes(NUM_KEYS * PAGE_BYTES))
    return path


@pytest.mark.parametrize("priority", [P1, P2, P3])
@pytest.mark.parametrize("reader", READERS)
def test_an_exact_read_behind_sixteen_predicted_ones_is_the_next_to_start(path, reader, priority):
    config = RuntimeConfig(expert_depth=DEPTH)
    with opened(reader, config, path) as (transfer, pages):
        transfer.prefetch("expert", [PredictedKey(key) for key in range(16)], Origin(request=0), priority, "planted")
        before = len(pages.started)
        assert 0 < before <= DEPTH, "only as many as the disk takes at once are at the reader"
        demand = transfer.run(transfer.load("expert", [40], Origin(request=0), logical_bytes=PAGE_BYTES))
        transfer.run(transfer.wait(demand))
        assert pages.started[before] == (40, P0), "nothing that was predicted starts before it"
        transfer.release(demand)
        while transfer.num_in_flight:
            transfer.stand_by()


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_starts_what_it_is_given(path, reader):
    config = RuntimeConfig(expert_depth=DEPTH)
    with opened(reader, config, path) as (transfer, _):
        demand = transfer.run(transfer.load("expert", range(32), Origin(request=0), logical_bytes=32 * PAGE_BYTES))
        while not demand.have(demand.tickets):
            assert transfer.num_in_flight <= DEPTH
            transfer.stand_by()
        transfer.release(demand)


events = st.lists(
    st.tuples(st.sampled_from([P0, P1, P2, P3]), st.lists(st.integers(0, NUM_KEYS - 1), min_size=1, max_size=20), st.booleans()),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(events, st.integers(1, 20))
def test_no_class_starts_before_a_more_urgent_one_that_waits_at_any_depth(events, depth):
    config, clock = RuntimeConfig(expert_depth=depth), VirtualClock()
    transfer, pages = build(TimedReader(None, Disk(load_envelope("m4-pro-512gb")), clock), 0, clock, config)
    scheduler = transfer.scheduler
    read = pages.read

    def checked(order):
        waiting = [p for p in Priority if p < order.priority and scheduler.reads.queue.waiting(p)]
        assert not waiting, f"{order.priority!r} starts while {waiting} wait"
        assert scheduler.reads.num_in_flight <= depth
        return read(order)

    pages.read = checked
    for priority, keys, lets_time_pass in events:
        if priority is P0:
            demand = transfer.run(transfer.load("expert", keys, Origin(request=0), logical_bytes=0))
            transfer.run(transfer.wait(demand))
            transfer.release(demand)
        else:
            transfer.prefetch("expert", [PredictedKey(key) for key in keys], Origin(request=1), priority, "planted")
        if lets_time_pass and transfer.num_in_flight:
            transfer.stand_by()
    while transfer.num_in_flight:
        transfer.stand_by()
