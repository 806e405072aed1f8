"""The order in which parts are asked for, computed and let go, whatever comes when."""

from collections import deque
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.readers import VirtualClock
from workbench.runtime.flow import Batch, Flow

WAIT_NS = 1000


class Disk:
    """Stands in for a transfer: a part is there, or comes only when somebody waits for it."""

    def __init__(self, there, notes):
        self.clock = VirtualClock()
        self._there, self._notes = there, notes

    def wait(self, demand, sync_piece):
        while demand not in self._there:
            if not sync_piece():
                self._notes.append(("wait", demand))
                self._there.add(demand)
                self.clock.sleep_until(self.clock.now_ns() + WAIT_NS)
                return WAIT_NS
            yield
        return 0


class Parts:
    """A feed of `count` parts with room for `room` of them."""

    def __init__(self, count, room, notes):
        self._left, self._room, self._notes = deque(range(count)), room, notes
        self._asked = deque()

    def fill(self):
        while self._left and self._room:
            self._room -= 1
            self._asked.append(self._left.popleft())
            self._notes.append(("ask", self._asked[-1]))

    def next_batch(self):
        yield from ()
        return Batch(self._asked.popleft(), [7]) if self._asked else None

    @property
    def is_done(self):
        return not self._left and not self._asked

    def views(self, batch):
        return [batch.demand]

    def release(self, batch):
        self._room += 1
        self._notes.append(("release", batch.demand))


def run(count, room, there):
    notes = []
    work = SimpleNamespace(
        begin=lambda keys, views: notes.append(("begin", views[0])) or views[0],
        finish=lambda number: notes.append(("finish", number)),
    )
    flow = Flow(Disk(set(there), notes))
    for _ in flow.run(Parts(count, room, notes), work):
        pass
    return notes, flow.waited_ns


@given(st.integers(0, 12), st.integers(1, 5), st.sets(st.integers(0, 12)))
def test_every_part_is_asked_begun_finished_and_released_once_in_order(count, room, there):
    notes, waited_ns = run(count, room, there)
    for name in ("ask", "begin", "finish", "release"):
        assert [number for kind, number in notes if kind == name] == list(range(count))
    for number in range(count):
        steps = [notes.index((name, number)) for name in ("ask", "begin", "finish", "release")]
        assert steps == sorted(steps), "memory was let go before its use was over"
    held = 0
    for kind, _ in notes:
        held += {"ask": 1, "release": -1}.get(kind, 0)
        assert held <= room
    assert waited_ns == WAIT_NS * len([kind for kind, _ in notes if kind == "wait"])


def test_compute_stands_still_only_when_it_has_nothing_left_to_do():
    notes, _ = run(3, 3, {0, 1})
    assert notes.index(("finish", 1)) < notes.index(("wait", 2))
    assert ("wait", 0) not in notes


def test_the_next_part_is_begun_before_the_one_before_is_finished():
    notes, waited_ns = run(4, 4, range(4))
    assert notes.index(("begin", 2)) < notes.index(("finish", 0))
    assert waited_ns == 0


@pytest.mark.parametrize("room", [1, 2])
def test_a_small_room_is_passed_part_by_part(room):
    notes, _ = run(5, room, range(5))
    assert notes.index(("release", 0)) < notes.index(("ask", room))
