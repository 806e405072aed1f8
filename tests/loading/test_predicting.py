"""What becomes of predicted keys: read in their class, kept until their layer, withdrawn behind it, demoted with a rejection."""

import numpy as np
import pytest

from workbench.errors import BadInput
from workbench.loading.predicting import Predicting, RouterClock
from workbench.loading.transfer import Transfer
from workbench.policies import make
from workbench.prediction import Predictor, PredictorSettings, RouteShape
from workbench.readers import Disk, TimedReader, VirtualClock
from workbench.readers.base import Read
from workbench.scheduling import (
    NEVER_NS,
    Budget,
    Pool,
    PredictedKey,
    Priority,
    ReadLimits,
    Scheduler,
    SchedulerConfig,
    Scope,
    SlotTable,
)
from workbench.schema import EventLog
from workbench.schema.envelopes import load_envelope

SHAPE = RouteShape(num_layers=4, num_experts=8, top_k=2)


class ReadSource:
    def read(self, order):
        return Read(order.number, 0, 0, order.num_bytes, memoryview(b""))

    def arrived(self, order):
        pass


class Planned(Predictor):
    """Predicts what a test says."""

    name = "planned"

    def __init__(self, keys, lead=1):
        super().__init__(SHAPE, PredictorSettings(lead_layers=lead))
        self.keys = keys

    def look(self, scope, layer, tensors):
        return self.keys


def build(keys, *, lead=1, until=lambda layer, lead: NEVER_NS, reads=2, num_slots=12):
    clock, log = VirtualClock(), EventLog()
    pool = Pool(
        name="expert", digest="d", slots=SlotTable(num_slots, make("lru", capacity=num_slots)), sizes=lambda k, b: (100, 100)
    )
    budget = Budget(num_bytes=10_000, slots=4, reads=reads)
    limits = ReadLimits(depth={"expert": 8}, budgets=dict.fromkeys((Priority.P1, Priority.P2, Priority.P3), budget))
    reader = TimedReader(None, Disk(load_envelope("m5-pro-2tb")), clock)
    transfer = Transfer(
        Scheduler([pool], SchedulerConfig(limits=limits)), reader, {"expert": ReadSource()}, log, clock, lambda e: None
    )
    predictor = Planned([PredictedKey(*key) if isinstance(key, tuple) else key for key in keys], lead)
    return transfer, Predicting(transfer, predictor, SHAPE, until), log


def route(transfer, predicting, layer, ids, position=5, phase="decode", num_tokens=1):
    """A router's choice: demanded, told to the predictor, computed and let go."""
    scope = Scope(0, phase, position, num_tokens)
    keys = [layer * 8 + expert for expert in ids]
    demand = transfer.run(transfer.load("expert", keys, scope.origin(layer), logical_bytes=0))
    predicting.routed(scope, layer, np.array([ids]))
    transfer.run(transfer.wait(demand))
    transfer.release(demand)
    return demand


def test_an_event_tells_what_became_of_the_keys_and_the_budget():
    transfer, predicting, log = build([(8, 0.9), (9, 0.5), (10, 0.1)])
    route(transfer, predicting, 1, [0], phase="prefill")
    log.clear()
    route(transfer, predicting, 0, [1, 2])
    origin = log.frame().filter(kind="predict").row(0, named=True)
    assert (origin["name"], origin["layer"], origin["position"], origin["priority"], origin["value"]) == ("planned", 1, 5, 1, 3)
    assert (origin["hits"], origin["misses"], origin["joined"], origin["refused"]) == (1, 2, 0, 0), "key 8 was there"
    assert (origin["budget_bytes"], origin["budget_slots"], origin["budget_reads"]) == (10_000, 4, 2)
    assert origin["deadline_ns"] is None


def test_what_was_not_read_when_its_layer_came_is_withdrawn():
    transfer, predicting, _ = build([(key, 0.5) for key in range(8, 16)], reads=1)
    route(transfer, predicting, 0, [])
    assert transfer.scheduler.pools["expert"].tickets
    predicting._predictor.keys = []
    route(transfer, predicting, 1, [7])
    assert not [t for t in transfer.scheduler.pools["expert"].tickets.values() if not t.issued]


def test_a_prediction_for_the_next_token_waits_for_its_position():
    transfer, predicting, log = build([(2, 0.5)], lead=4)
    route(transfer, predicting, 0, [1])
    predicting._predictor.keys = []
    origin = log.frame().filter(kind="predict").row(0, named=True)
    assert (origin["layer"], origin["position"], origin["priority"]) == (0, 6, 2), "four layers ahead is the next token: P2"


def test_a_resident_prediction_stays_until_its_layer_was_demanded():
    transfer, predicting, _ = build([(8, 0.9)], num_slots=2)
    slots = transfer.scheduler.pools["expert"].slots
    route(transfer, predicting, 1, [0], position=1)
    route(transfer, predicting, 0, [1], position=2)
    route(transfer, predicting, 3, [3], position=2, phase="prefill")
    assert slots.is_resident(8), "the least recently used record was predicted, so another one left"
    predicting._predictor.keys = []
    route(transfer, predicting, 1, [5], position=2)
    route(transfer, predicting, 2, [5], position=2)
    assert not slots.is_resident(8)


def test_deadlines_come_from_the_clock_of_routers():
    clock = VirtualClock()
    routers = RouterClock(clock)
    assert routers.until(0, 1) == NEVER_NS
    for time_ns in (0, 100, 200):
        clock.sleep_until(time_ns)
        routers.note(0)
    assert routers.until(3, 2) == 200
    routers.pause(0)
    clock.sleep_until(10**9)
    routers.note(0)
    assert routers.until(3, 1) == 100, "a pause is no layer"


def test_prompts_are_not_predicted():
    transfer, predicting, log = build([(8, 0.9)])
    route(transfer, predicting, 0, [1], phase="prefill")
    assert log.frame().filter(kind="predict").height == 0


@pytest.mark.parametrize("keys", [[(8, 1.0), (16, 1.0)], [(-1, 1.0)], [(32, 1.0)], [8]])
def test_keys_that_are_no_keys_of_one_layer_are_refused_in_one_line(keys):
    _, predicting, _ = build(keys)
    with pytest.raises(BadInput, match="predictor planned must name"):
        predicting.routed(Scope(0, "decode", 5), 0, np.array([[1]]))


@pytest.mark.parametrize("key", [(8.5,), ("8",), (8, float("nan")), (8, 1.5), (8, 1.0, 1 << 70), (8, 1.0, 1, 0.5)])
def test_keys_probabilities_masks_and_deadlines_of_other_kinds_are_refused_in_one_line(key):
    _, predicting, _ = build([key])
    with pytest.raises(BadInput, match="predictor planned: no such key, probability, token mask or deadline: PredictedKey"):
        predicting.routed(Scope(0, "decode", 5), 0, np.array([[1]]))


def test_a_predictor_that_fails_is_told_in_one_line(monkeypatch):
    _, predicting, _ = build([(8, 0.9)])
    monkeypatch.setattr(Planned, "look", lambda self, scope, layer, tensors: 1 / 0)
    with pytest.raises(BadInput, match=r"predictor planned fails at layer 0: ZeroDivisionError: .* \(.*test_predicting.py, line"):
        predicting.routed(Scope(0, "decode", 5), 0, np.array([[1]]))
