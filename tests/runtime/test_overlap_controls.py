"""The controls of Gate C do what they say: pages asked for late, one queue, the whole next layer, another disk."""

import pytest

from workbench.readers import PacedReader
from workbench.runtime import streamed
from workbench.runtime.config import RuntimeConfig
from workbench.runtime.session import Session
from workbench.runtime.streamed import StreamedEngine
from workbench.schema import EventLog


def decode_events(store, config, tokens=3):
    log = EventLog()
    with StreamedEngine(store, config, log) as engine:
        session = Session(engine)
        for token in (40, 51, 62)[:tokens]:
            session.decode(token)
        waiting = [ticket for ticket in engine.scheduler.pools["expert"].tickets.values() if not ticket.issued]
    return log.frame(), waiting


@pytest.mark.parametrize(("ple", "first"), [("early", "ple"), ("late", "expert")])
def test_pages_are_asked_for_before_the_first_layer_or_at_their_own(mini_store, ple, first):
    events, _ = decode_events(mini_store, RuntimeConfig(ple=ple), tokens=1)
    demands = events.filter(kind="demand").select("store", "layer").rows()
    assert demands[0][0] == first
    place = demands.index(("ple", 1))
    assert demands[place - 1 : place] == ([] if ple == "early" else [("expert", 0)])


def test_the_next_layer_is_predicted_behind_each_and_nothing_of_it_waits_on(mini_store, budget_bytes):
    events, waiting = decode_events(mini_store, RuntimeConfig(cache_bytes=budget_bytes(mini_store, 0.1), predictor="next_layer"))
    predicted = events.filter(kind="ticket", store="expert", intent="predicted")
    assert predicted.height > 20
    assert predicted["layer"].min() == 1, "nobody predicts the first layer"
    assert set(predicted["identity"] // 128) == set(predicted["layer"])
    assert not waiting, "what was not read when its layer had come is withdrawn"


@pytest.mark.parametrize(
    ("queue", "depth"), [("lanes", {"expert": 16, "ple": 64, "layer": 4}), ("fifo", {"expert": 16, "layer": 4})]
)
def test_one_queue_has_one_depth(monkeypatch, queue, depth):
    asked = []
    monkeypatch.setattr(streamed, "open_reader", lambda **options: asked.append(options))
    streamed.configured_reader(RuntimeConfig(queue=queue))
    assert asked[0]["depth"] == streamed.scheduler_config(RuntimeConfig(queue=queue)).limits.depth == depth


def test_in_one_queue_pages_go_the_way_of_records(mini_store):
    config = RuntimeConfig(queue="fifo", uncached=False)
    with StreamedEngine(mini_store, config, EventLog()) as engine:
        queues = []
        submit = engine.reader.submit
        engine.reader.submit = lambda reads: queues.extend(read.queue for read in reads) or submit(reads)
        Session(engine).decode(40)
    assert set(queues) == {"expert"}


def test_a_named_disk_paces_the_reader():
    with streamed.configured_reader(RuntimeConfig(envelope="m4-pro-512gb", uncached=False)) as reader:
        assert isinstance(reader, PacedReader)
