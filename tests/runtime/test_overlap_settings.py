"""Whatever overlaps, in whatever order bytes come: the bits of the resident path."""

import itertools

import numpy as np
import pytest

from workbench.errors import BadInput
from workbench.paths import bundled_model
from workbench.readers import PreadReader, ShuffledReader
from workbench.runtime import memory
from workbench.runtime.config import RuntimeConfig
from workbench.runtime.resident_engine import ResidentEngine
from workbench.runtime.session import Session
from workbench.runtime.streamed import StreamedEngine
from workbench.schema import EventLog

WAVES = ("barrier", 1, 2, 4, "all")
OTHERS = (
    {"ple": "late"},
    {"queue": "fifo"},
    {"readback": "misses"},
    {"readback": "misses", "wave": 1, "split_components": True},
    {"predictor": "next_layer"},
    {"predictor": "previous_token"},
    {"predictor": "next_layer", "readback": "misses", "wave": 1},
    {"uncached": False, "split_components": True},
)
SETTINGS = [*({"wave": wave, "split_components": split} for wave in WAVES for split in (False, True)), *OTHERS]


def assert_equal_runs(streamed, resident):
    assert streamed[0] == resident[0], "state digests differ"
    assert streamed[1] == resident[1], "routing digests differ"
    np.testing.assert_array_equal(streamed[2], resident[2])


@pytest.fixture(scope="module")
def short(mini_tokens):
    return mini_tokens[:16]


@pytest.fixture(scope="module")
def mini_reference(short, resident_run):
    return resident_run(bundled_model(), short, tile=9)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_settings_move_bytes_and_decide_nothing(mini_store, short, mini_reference, streamed_run, budget_bytes, settings):
    config = RuntimeConfig(cache_bytes=budget_bytes(mini_store, 0.05), **settings)
    digests, events = streamed_run(mini_store, short, config, tile=9)
    assert_equal_runs(digests, mini_reference)
    assert events.filter(kind="ticket", store="expert").height > 300


@pytest.mark.parametrize(("wave", "split"), [("barrier", False), (1, True), (2, False), ("all", True)])
def test_large_records_in_waves(two_tables, resident_run, streamed_run, budget_bytes, monkeypatch, wave, split):
    monkeypatch.setattr(memory, "SMALL_RECORD_BYTES", 0)
    checkpoint, store = two_tables
    tokens = np.random.default_rng(4).integers(0, 300, 20).tolist()
    config = RuntimeConfig(cache_bytes=budget_bytes(store, 0.1), wave=wave, split_components=split)
    assert_equal_runs(streamed_run(store, tokens, config, tile=7)[0], resident_run(checkpoint, tokens, tile=7))


def run_blocks(engine, tokens, lengths=(1, 2, 5, 8, 3, 1, 5)):
    """Digest and logits of a sequence in blocks such as a verifier takes."""
    session, logits, start = Session(engine), [], 0
    for length in lengths:
        logits.append(session.verify(tokens[start : start + length], len))
        start += length
    return session.state.digest(), np.concatenate(logits)


@pytest.fixture(scope="module")
def blocks_reference(mini_tokens):
    with ResidentEngine(bundled_model(), EventLog()) as engine:
        return run_blocks(engine, mini_tokens)


@pytest.mark.parametrize(
    ("readback", "wave", "split"), [("ids", 1, True), ("misses", 2, False), ("misses", 4, True), ("ids", "all", False)]
)
def test_blocks_of_up_to_eight_tokens_in_waves(mini_store, mini_tokens, blocks_reference, budget_bytes, readback, wave, split):
    config = RuntimeConfig(
        cache_bytes=budget_bytes(mini_store, 0.05), readback=readback, wave=wave, split_components=split, predictor="next_layer"
    )
    with StreamedEngine(mini_store, config, EventLog()) as engine:
        digest, logits = run_blocks(engine, mini_tokens)
    assert digest == blocks_reference[0]
    np.testing.assert_array_equal(logits, blocks_reference[1])


def test_reads_of_parts_move_each_component_once(mini_store, short, streamed_run, budget_bytes):
    config = RuntimeConfig(cache_bytes=budget_bytes(mini_store, 1.0), split_components=True)
    _, events = streamed_run(mini_store, short, config)
    tickets = events.filter(kind="ticket", store="expert", phase="decode")
    assert set(tickets["logical_bytes"]) == {27_648}
    # two calls a record; of a lone miss both parts follow each other in the file and make one
    assert {2.0} <= set(tickets["value"]) <= {1.0, 2.0}
    assert set(events.filter(kind="wave")["name"]) == {"gate_up", "down"}


@pytest.mark.parametrize("readback", ["ids", "misses"])
def test_hits_of_the_device_are_those_of_the_host(mini_store, short, streamed_run, budget_bytes, readback):
    """With room for everything a second run of the same tokens misses nothing, and every layer reads back once."""
    log = EventLog()
    with StreamedEngine(mini_store, RuntimeConfig(cache_bytes=budget_bytes(mini_store, 1.0), readback=readback), log) as engine:
        for _ in range(2):
            log.clear()
            session = Session(engine, tile=8)
            session.prefill(short)
    events = log.frame()
    assert events.filter(kind="demand", store="expert")["misses"].sum() == 0
    assert events.filter(kind="readback").height == events.filter(kind="route").height == 8 * 2
    assert events.filter(kind="wave").height == 0


def run_shuffled(store, tokens, cache_bytes, seed, settings):
    """Digests with completions of a real reader in a random order."""
    reader = ShuffledReader(PreadReader(), seed)
    with StreamedEngine(store, RuntimeConfig(cache_bytes=cache_bytes, **settings), EventLog(), reader=reader) as engine:
        session = Session(engine)
        logits = session.prefill(tokens)
        for _ in range(4):
            logits = session.decode(int(np.argmax(logits)))
    return session.state.digest(), session.routing_digest


def assert_orders_change_nothing(store, tokens, cache_bytes, resident_run, count):
    wanted = resident_run(bundled_model(), tokens, decoded=4)[:2]
    for seed, settings in zip(range(count), itertools.cycle(SETTINGS)):
        assert run_shuffled(store, tokens, cache_bytes, seed, settings) == wanted, f"order {seed}, {settings}"


def test_random_orders_of_completion_change_nothing(mini_store, short, budget_bytes, resident_run):
    assert_orders_change_nothing(mini_store, short[:5], budget_bytes(mini_store, 0.0), resident_run, 25)


@pytest.mark.soak
def test_five_hundred_random_orders_change_nothing(mini_store, short, budget_bytes, resident_run):
    assert_orders_change_nothing(mini_store, short[:5], budget_bytes(mini_store, 0.0), resident_run, 500)


def test_settings_that_contradict_are_refused(mini_store, two_tables, monkeypatch):
    with pytest.raises(BadInput, match="choose one"):
        StreamedEngine(mini_store, RuntimeConfig(readback="misses", wave="barrier"), EventLog())
    with pytest.raises(BadInput, match="bundled are m2-mini"):
        StreamedEngine(mini_store, RuntimeConfig(envelope="m9"), EventLog())
    monkeypatch.setattr(memory, "SMALL_RECORD_BYTES", 0)
    with pytest.raises(BadInput, match=r"use runtime\.readback=ids"):
        StreamedEngine(two_tables[1], RuntimeConfig(readback="misses"), EventLog())


def test_an_envelope_slows_the_reads_down(mini_store, short, streamed_run, budget_bytes):
    cache_bytes = budget_bytes(mini_store, 0.05)
    _, events = streamed_run(mini_store, short, RuntimeConfig(cache_bytes=cache_bytes, envelope="usb-10gbps"), decoded=1)
    tickets = events.filter(kind="ticket", store="expert")
    latency_us = ((tickets["ready_ns"] - tickets["submit_ns"]) / 1000).min()
    assert latency_us >= 150, "no read can be faster than the modelled disk's latency"
