"""Which experts run together as bytes arrive, by a plan of arrivals; nothing is computed and no disk is read."""

from types import SimpleNamespace

import pytest

from workbench.loading.transfer import RequestFailed, Transfer
from workbench.loading.waves import run_in_waves
from workbench.policies import make
from workbench.readers import VirtualClock
from workbench.readers.base import Completion, Reader
from workbench.scheduling.pool import DOWN_BIT, GATE_UP_BITS, RECORD_BITS, Pool
from workbench.scheduling.scheduler import Scheduler
from workbench.scheduling.slots import SlotTable
from workbench.scheduling.ticket import Scope
from workbench.schema import EventLog

RECORD = 600


class PlannedReader(Reader):
    """Reads end `arrivals[key, bits]` nanoseconds after the start, or fail for good; polls move the clock."""

    def __init__(self, clock, arrivals, failing=()):
        self.clock, self.arrivals, self.failing = clock, arrivals, failing
        self.coming = []

    def open_file(self, path):
        raise AssertionError("nothing here opens a file")

    def submit(self, reads):
        self.coming += [(self.arrivals[read.identity], read) for read in reads]
        return len(reads)

    def poll(self, timeout_s=0.0, at_least=1):
        if timeout_s and self.coming:
            self.clock.sleep_until(min(time for time, _ in self.coming))
        now_ns = self.clock.now_ns()
        done = [(time, read) for time, read in self.coming if time <= now_ns]
        self.coming = [(time, read) for time, read in self.coming if time > now_ns]
        error = OSError("gone")
        return [Completion(read.key, 0, time, error if read.identity[0] in self.failing else None) for time, read in done]

    def close(self):
        self.coming.clear()

    @property
    def in_flight(self):
        return len(self.coming)


class ReadSource:
    def read(self, order):
        return SimpleNamespace(key=order.number, identity=(order.ticket.key, order.bits))

    def arrived(self, order):
        pass


class Diary:
    """Notes what would run, and when; each stage takes `cost_ns` an expert on a device of its own."""

    def __init__(self, clock, cost_ns):
        self.clock, self.cost_ns = clock, cost_ns
        self.free_ns = 0
        self.running = 0
        self.entries = []

    def _note(self, name, keys, parts):
        self.entries.append((name, tuple(keys), self.clock.now_ns()))
        self.running += 1
        self.free_ns = max(self.free_ns, self.clock.now_ns()) + parts * self.cost_ns * len(keys)

    def run(self, keys, slots):
        assert set(keys) <= set(slots)
        self._note("run", keys, 3)

    def gate_up(self, keys, slots):
        self._note("gate_up", keys, 2)
        return "inner"

    def down(self, keys, slots, inner):
        assert inner == "inner"
        self._note("down", keys, 1)

    def sync_piece(self):
        """The device computes in order: the oldest piece is done when all are."""
        if not self.running:
            return False
        self.running -= 1
        self.clock.sleep_until(self.free_ns)
        return True

    def drain(self, origin):
        self.clock.sleep_until(self.free_ns)


def run(arrivals, size, *, hits=(), split=False, cost_ns=0, failing=()):
    """What ran, and the events: `arrivals` by key, or by key and bits where records are read in two parts."""
    clock, log, scope = VirtualClock(), EventLog(), Scope(0, "decode", 7)
    parts = (GATE_UP_BITS, DOWN_BIT) if split else (RECORD_BITS,)
    planned = arrivals if split else {(key, RECORD_BITS): time_ns for key, time_ns in arrivals.items()}
    keys = [*hits, *dict.fromkeys(key for key, _ in planned)]
    pool = Pool(
        name="expert",
        digest="",
        slots=SlotTable(32, make("lru", capacity=32)),
        sizes=lambda key, bits: (RECORD, RECORD),
        parts=parts,
    )
    reader = PlannedReader(clock, planned | {(key, bits): 0 for key in hits for bits in parts}, failing)
    diary = Diary(clock, cost_ns)
    transfer = Transfer(Scheduler([pool]), reader, {"expert": ReadSource()}, log, clock, diary.drain)
    if hits:
        load(transfer, list(hits), scope.origin(0))
        log.clear()
    demand = transfer.run(transfer.load("expert", keys, scope.origin(1), logical_bytes=0))
    transfer.run(run_in_waves(transfer, demand, keys, diary, size))
    transfer.release(demand)
    return diary.entries, log.frame()


def load(transfer, keys, origin):
    """Demands keys, waits for all of them and lets them go."""
    demand = transfer.run(transfer.load("expert", keys, origin, logical_bytes=0))
    transfer.run(transfer.wait(demand))
    transfer.release(demand)


def test_hits_run_at_once_and_each_miss_as_it_comes():
    ran, events = run({3: 10, 4: 30, 5: 20}, 1, hits=(1, 2))
    assert ran == [("run", (1, 2), 0), ("run", (3,), 10), ("run", (5,), 20), ("run", (4,), 30)]
    waits = events.filter(kind="wait").sort("t_ns")
    assert waits["duration_ns"].to_list() == [10, 10, 10]
    assert waits["guarded"].to_list() == waits["consumed"].to_list() == [1, 1, 1]


@pytest.mark.parametrize(
    ("size", "ran"),
    [
        (2, [((3, 4), 20), ((5, 6), 40), ((7,), 50)]),
        (4, [((3, 4, 5, 6), 40), ((7,), 50)]),
        ("all", [((3, 4, 5, 6, 7), 50)]),
        ("barrier", [((3, 4, 5, 6, 7), 50)]),
    ],
)
def test_a_wave_runs_when_enough_have_come_and_what_remains_runs_together(size, ran):
    entries, _ = run({3: 10, 4: 20, 5: 30, 6: 40, 7: 50}, size)
    assert entries == [("run", keys, time_ns) for keys, time_ns in ran]


def test_a_barrier_holds_hits_back_too():
    ran, events = run({3: 10, 4: 30}, "barrier", hits=(1, 2))
    assert ran == [("run", (1, 2, 3, 4), 30)]
    assert events.filter(kind="wait")["duration_ns"].to_list() == [30]


def test_all_that_have_come_while_compute_was_busy_run_together_and_nobody_stands_still():
    ran, events = run({3: 10, 4: 20, 5: 29}, 1, hits=(1,), cost_ns=10)
    assert ran == [("run", (1,), 0), ("run", (3, 4, 5), 30)]
    assert events.filter(kind="wait").height == 0
    assert events.filter(kind="ticket")["outcome"].to_list() == ["used_on_time"] * 3


def test_a_wait_begins_when_compute_has_ended():
    _, events = run({3: 100}, 1, hits=(1,), cost_ns=20)
    wait = events.filter(kind="wait").row(0, named=True)
    assert (wait["t_ns"], wait["duration_ns"]) == (60, 40)
    assert events.filter(kind="ticket")["outcome"].to_list() == ["used_late"]


def test_gate_and_up_run_before_down_has_come():
    arrivals = {(3, GATE_UP_BITS): 10, (4, GATE_UP_BITS): 20, (3, DOWN_BIT): 40, (4, DOWN_BIT): 30}
    ran, events = run(arrivals, 1, split=True)
    assert ran == [("gate_up", (3,), 10), ("gate_up", (4,), 20), ("down", (4,), 30), ("down", (3,), 40)]
    waves = events.filter(kind="wave")
    assert waves.filter(name="gate_up")["duration_ns"].to_list() == [10, 20]
    assert waves.filter(name="down")["duration_ns"].to_list() == [30, 40]


def test_a_wave_of_two_waits_for_the_down_of_both():
    arrivals = {(3, GATE_UP_BITS): 10, (4, GATE_UP_BITS): 20, (3, DOWN_BIT): 40, (4, DOWN_BIT): 30}
    ran, events = run(arrivals, 2, split=True)
    assert ran == [("gate_up", (3, 4), 20), ("down", (3, 4), 40)]
    assert events.filter(kind="wait")["consumed"].to_list() == [2, 2]


def test_a_record_that_is_whole_already_runs_whole():
    ran, _ = run({(3, GATE_UP_BITS): 10, (3, DOWN_BIT): 10}, 1, split=True)
    assert ran == [("run", (3,), 10)]


def test_a_wave_that_can_not_be_had_fails_the_request():
    with pytest.raises(RequestFailed, match="layer 1 could not be read: gone"):
        run({3: 10, 4: 20}, 1, hits=(1,), failing=(4,))


def test_what_comes_while_compute_ends_was_on_time_and_nobody_waited():
    clock, log = VirtualClock(), EventLog()
    pool = Pool(name="expert", digest="", slots=SlotTable(8, make("lru", capacity=8)), sizes=lambda key, bits: (RECORD, RECORD))
    reader = PlannedReader(clock, {(3, 1): 30, (4, 1): 80})
    transfer = Transfer(Scheduler([pool]), reader, {"expert": ReadSource()}, log, clock, lambda origin: clock.sleep_until(50))
    for key in (3, 4):
        load(transfer, [key], Scope(0, "decode", 0).origin(1))
    events = log.frame()
    assert events.filter(kind="ticket").sort("ready_ns")["outcome"].to_list() == ["used_on_time", "used_late"]
    assert events.filter(kind="wait").select("t_ns", "duration_ns").rows() == [(50, 30)]
