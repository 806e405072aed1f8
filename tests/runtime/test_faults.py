"""Decode under planted faults, on a virtual clock: the same digests or one clean error, and nothing leaked."""

import os
import threading

import numpy as np
import pytest

from workbench.loading.transfer import RequestFailed
from workbench.paths import data_folder
from workbench.readers import Disk, Fault, FaultKind, FaultyReader, PreadReader, TimedReader, VirtualClock
from workbench.runtime.config import RuntimeConfig
from workbench.runtime.session import Session
from workbench.runtime.streamed import StreamedEngine
from workbench.schema import EventLog
from workbench.schema.envelopes import Envelope

PROMPT = [40, 51, 62]
TOKENS = 6
DELAY_NS = 3_000_000
NUM_PARTS = 8
"""Parts of the long tests, so that all cores share them."""
APART = {"split_components": True, "wave": 1}


class Planted:
    """An engine on a virtual clock whose `fault_of(n)` says what happens to the n-th read."""

    def __init__(self, store, fault_of, cache_bytes, **settings):
        clock = VirtualClock()
        disk = Disk(Envelope.from_json(data_folder() / "envelopes" / "m4-pro-512gb.json"))
        self.reader = FaultyReader(TimedReader(PreadReader(), disk, clock), fault_of, clock)
        config = RuntimeConfig(cache_bytes=cache_bytes, **settings)
        self.engine = StreamedEngine(store, config, EventLog(), reader=self.reader, clock=clock)

    def run(self):
        """State and routing digests after `TOKENS` greedy tokens, or the error; what was committed stays checked."""
        session = Session(self.engine)
        committed = session.state.digest()
        try:
            logits = session.prefill(PROMPT)
            for _ in range(TOKENS):
                committed = session.state.digest(), session.routing_digest
                logits = session.decode(int(np.argmax(logits)))
        except RequestFailed as error:
            assert (session.state.digest(), session.routing_digest) == committed, "a failed pass changed the committed state"
            return error
        finally:
            self.close()
        return session.state.digest(), session.routing_digest

    def close(self):
        self.reader.thaw()
        self.engine.close()
        for pool in self.engine.scheduler.pools.values():
            assert not pool.tickets, f"{pool.name}: tickets left"
            assert pool.slots.num_available + pool.slots.num_draining == pool.slots.num_slots, f"{pool.name}: slots leased"


@pytest.fixture(scope="module")
def cache_bytes(mini_store, budget_bytes):
    return budget_bytes(mini_store, 0.05)


def run_sound(store, cache_bytes, **settings):
    """Digests without faults, and how many reads there are to spoil."""
    reads = []
    planted = Planted(store, lambda n: reads.append(n), cache_bytes, **settings)
    return planted.run(), len(set(reads))


@pytest.fixture(scope="module")
def sound(mini_store, cache_bytes):
    return run_sound(mini_store, cache_bytes)


@pytest.fixture(scope="module")
def sound_apart(mini_store, cache_bytes):
    """The same with gate+up and down of every record read apart, and one record at a time computed."""
    return run_sound(mini_store, cache_bytes, **APART)


def faults(kind):
    return Fault(kind=kind, delay_ns=DELAY_NS if kind is FaultKind.DELAY else 0)


def assert_single_fault_is_survived(store, sound, cache_bytes, position, kind, **settings):
    planted = Planted(store, lambda n: faults(kind) if n == position else None, cache_bytes, **settings)
    assert planted.run() == sound[0], f"{kind} at read {position}"
    assert planted.reader.num_faults == 1


def one_percent(num_reads):
    cases = [(position, kind) for position in range(num_reads) for kind in FaultKind]
    random = np.random.default_rng(20261130)
    return [cases[index] for index in random.choice(len(cases), max(len(cases) // 100, len(FaultKind)), replace=False)]


def test_one_percent_of_all_single_faults(mini_store, sound, cache_bytes):
    for position, kind in one_percent(sound[1]):
        assert_single_fault_is_survived(mini_store, sound, cache_bytes, position, kind)


def test_some_single_faults_of_split_reads(mini_store, sound, sound_apart, cache_bytes):
    assert sound_apart[0] == sound[0]
    assert sound_apart[1] > 1.5 * sound[1]
    for position, kind in one_percent(sound_apart[1])[::3]:
        assert_single_fault_is_survived(mini_store, sound, cache_bytes, position, kind, **APART)


@pytest.mark.soak
@pytest.mark.parametrize("kind", list(FaultKind))
@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_every_single_fault(mini_store, sound, cache_bytes, kind, part):
    for position in range(part, sound[1], NUM_PARTS):
        assert_single_fault_is_survived(mini_store, sound, cache_bytes, position, kind)


@pytest.mark.soak
@pytest.mark.parametrize("kind", list(FaultKind))
@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_every_single_fault_of_split_reads(mini_store, sound_apart, cache_bytes, kind, part):
    for position in range(part, sound_apart[1], NUM_PARTS):
        assert_single_fault_is_survived(mini_store, sound_apart, cache_bytes, position, kind, **APART)


@pytest.mark.parametrize("kind", [FaultKind.ERROR, FaultKind.SHORT, FaultKind.CORRUPT])
def test_a_disk_that_keeps_failing_ends_in_one_error(mini_store, sound, cache_bytes, kind):
    late = sound[1] * 2 // 3
    outcome = Planted(mini_store, lambda n: faults(kind) if n >= late else None, cache_bytes).run()
    assert isinstance(outcome, RequestFailed)
    assert "could not be read" in str(outcome)


def test_nothing_is_left_open(mini_store, cache_bytes):
    def now():
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    Planted(mini_store, lambda n: None, cache_bytes).run()
    before = now()
    Planted(mini_store, lambda n: faults(FaultKind.ERROR) if n % 40 == 7 else None, cache_bytes).run()
    assert now() == before
