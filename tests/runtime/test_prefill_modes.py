import collections
import itertools

import numpy as np
import polars as pl
import pytest

from workbench.analysis.detectors import run_detectors
from workbench.analysis.run_metrics import run_metrics
from workbench.errors import BadInput
from workbench.loading.transfer import RequestFailed
from workbench.paths import bundled_model
from workbench.readers import Fault, FaultKind, FaultyReader, PreadReader, ShuffledReader
from workbench.runtime import memory
from workbench.runtime.config import RuntimeConfig
from workbench.runtime.resident_engine import ResidentEngine
from workbench.runtime.session import Session
from workbench.runtime.streamed import StreamedEngine
from workbench.schema import EventLog

MODES = ("macro", "micro")


@pytest.fixture(scope="module")
def prompt(mini_tokens):
    return mini_tokens[:64]


@pytest.fixture(scope="module")
def reference(prompt, resident_run):
    """The resident path on `prompt` in one tile."""
    return resident_run(bundled_model(), prompt, tile=64, decoded=2)


@pytest.fixture(scope="module")
def tiny_tokens():
    return np.random.default_rng(2).integers(0, 300, 40).tolist()


@pytest.fixture(scope="module")
def tiny_reference(two_tables, tiny_tokens, resident_run):
    """The resident path on a small model, by tile."""
    return {tile: resident_run(two_tables[0], tiny_tokens, tile=tile, decoded=3) for tile in (9, 20, 40)}


def assert_equal_runs(streamed, resident):
    assert streamed[0] == resident[0], "state digests differ"
    assert streamed[1] == resident[1], "routing digests differ"
    np.testing.assert_array_equal(streamed[2], resident[2])


def modes_of(events):
    marks = events.filter(pl.col("name").str.starts_with("prefill_") & (pl.col("outcome") == "chosen"))
    return marks["name"].str.strip_prefix("prefill_").to_list()


@pytest.mark.parametrize(("mode", "share"), [("macro", 0.0), ("macro", 0.3), ("micro", 0.0), ("micro", 1.0)])
def test_same_bits_in_every_mode(mini_store, prompt, reference, streamed_run, budget_bytes, mode, share):
    config = RuntimeConfig(cache_bytes=budget_bytes(mini_store, share), prefill=mode)
    digests, events = streamed_run(mini_store, prompt, config, tile=64, decoded=2)
    assert_equal_runs(digests, reference)
    assert modes_of(events) == [mode]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("share", "tile", "settings"),
    [
        (0.4, 40, {"ring_share": 0.6}),
        (1.0, 9, {"ring_share": 0.4}),
        (1.0, 20, {"ring_share": 1.0}),
        (0.7, 20, {"ring_share": 0.6, "policy": "lru", "uncached": False, "checksums": False}),
    ],
)
@pytest.mark.parametrize("small_bytes", [0, 1 << 18])
def test_same_bits_with_any_ring(
    two_tables, tiny_tokens, tiny_reference, streamed_run, budget_bytes, monkeypatch, mode, share, tile, settings, small_bytes
):
    monkeypatch.setattr(memory, "SMALL_RECORD_BYTES", small_bytes)
    config = RuntimeConfig(cache_bytes=budget_bytes(two_tables[1], share), prefill=mode, **settings)
    digests, events = streamed_run(two_tables[1], tiny_tokens, config, tile=tile, decoded=3)
    assert_equal_runs(digests, tiny_reference[tile])
    assert set(modes_of(events)) == {mode}


def test_the_second_reader_of_a_store_has_the_same_bits(mini_store, prompt, reference):
    with ResidentEngine(mini_store, EventLog()) as engine:
        logits = Session(engine, tile=64).prefill(prompt)
        assert engine.identity.keys() == {"store_digest", "checkpoint_sha256"}
    np.testing.assert_array_equal(logits, reference[2][0])


@pytest.mark.parametrize("mode", MODES)
def test_what_a_mode_reads_is_told_honestly(mini_store, prompt, streamed_run, budget_bytes, mode):
    config = RuntimeConfig(cache_bytes=budget_bytes(mini_store, 0.0), prefill=mode)
    _, events = streamed_run(mini_store, prompt, config, tile=64, decoded=0)
    reads, demands = events.filter(kind="ticket", store="expert"), events.filter(kind="demand", store="expert")
    chosen, whole = demands["logical_bytes"].sum(), 8 * 128 * 27_648
    metrics = run_metrics(events)
    assert metrics["storage/expert_demand_bytes"] == chosen, "each record of a union is demanded once"
    assert [finding.code for finding in run_detectors(events, metrics)] == []
    if mode == "micro":
        assert metrics["storage/expert_wasted_bytes"] == 0
        return
    assert reads["identity"].sort().to_list() == list(range(8 * 128)), "whole layers, every record once"
    assert metrics["storage/expert_wasted_bytes"] == whole - chosen > 0
    assert metrics["storage/expert_physical_bytes"] == whole, "chunks of whole pages"
    # chunks of four records; neighbours that go off together make one call
    assert 8 * 128 / 8 < metrics["storage/expert_read_ops"] <= 8 * 128 / 4


def test_reads_run_on_over_the_border_of_a_layer(mini_store, prompt, streamed_run, budget_bytes):
    config = RuntimeConfig(cache_bytes=budget_bytes(mini_store, 0.5), prefill="macro")
    _, events = streamed_run(mini_store, prompt[:20], config, tile=20, decoded=0)
    reads = events.filter(kind="ticket", store="expert")
    routed = events.filter(kind="demand", store="expert")
    first_read = dict(reads.group_by("layer").agg(pl.col("submit_ns").min()).iter_rows())
    router_spoke = dict(routed.select("layer", "t_ns").iter_rows())
    assert all(first_read[layer] < router_spoke[layer - 1] for layer in range(1, 8))


def fill_cache(engine):
    """Decodes until no slot is empty; what is resident then."""
    session = Session(engine)
    slots = engine.scheduler.pools["expert"].slots
    for token in itertools.count(1):
        if not slots.num_free:
            return slots.resident_keys
        session.decode(token)


@pytest.mark.parametrize("mode", MODES)
def test_prefill_leaves_decode_its_records(mini_store, prompt, budget_bytes, mode):
    config = RuntimeConfig(cache_bytes=budget_bytes(mini_store, 0.1), prefill=mode)
    with StreamedEngine(mini_store, config, EventLog()) as engine:
        before, slots = fill_cache(engine), engine.scheduler.pools["expert"].slots
        session = Session(engine, tile=32)
        session.prefill(prompt)
        assert 0 < len(before - slots.resident_keys) <= config.ring_share * slots.num_slots
        session.decode(5)
        assert slots.num_lent == 0


def test_the_hottest_records_of_a_prompt_stay(mini_store, prompt, budget_bytes):
    config = RuntimeConfig(cache_bytes=budget_bytes(mini_store, 0.1), prefill="micro")
    heat = collections.Counter()

    def note(step, layer, tokens, ids, weights):
        heat.update((ids.ravel() + 128 * layer).tolist())

    with StreamedEngine(mini_store, config, EventLog()) as engine:
        before = fill_cache(engine)
        Session(engine, tile=64, route_sink=note).prefill(prompt)
        there = engine.scheduler.pools["expert"].slots.resident_keys
    stayed, left = there - before, heat.keys() - there - before
    for layer in range(8):
        of_layer = [[heat[key] for key in keys if key // 128 == layer] for keys in (stayed, left)]
        assert len(of_layer[0]) == 2, "each layer may leave its share behind"
        assert min(of_layer[0]) >= max(of_layer[1])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [FaultKind.ERROR, FaultKind.SHORT, FaultKind.CORRUPT])
def test_a_tile_that_fails_changes_nothing_and_the_next_one_works(
    two_tables, tiny_tokens, tiny_reference, budget_bytes, mode, kind
):
    config = RuntimeConfig(cache_bytes=budget_bytes(two_tables[1], 0.7), ring_share=0.6, prefill=mode)
    broken = {"from": 1 << 30}
    reads = []

    def fault_of(number):
        reads.append(number)
        return Fault(kind=kind) if number >= broken["from"] else None

    def engine():
        return StreamedEngine(two_tables[1], config, EventLog(), reader=FaultyReader(PreadReader(), fault_of))

    with engine() as sound:
        Session(sound, tile=40).prefill(tiny_tokens)
    # the last reads are those of the last layer's records
    broken["from"] = max(reads) - 3
    with engine() as faulty:
        session = Session(faulty, tile=40)
        before = session.state.digest()
        with pytest.raises(RequestFailed, match="could not be read"):
            session.prefill(tiny_tokens)
        assert session.state.digest() == before
        broken["from"] = 1 << 30
        logits = [session.prefill(tiny_tokens)]
        for _ in range(3):
            logits.append(session.decode(int(np.argmax(logits[-1]))))
        np.testing.assert_array_equal(np.stack(logits), tiny_reference[40][2])
        for each in faulty.scheduler.pools.values():
            assert each.slots.num_available + each.slots.num_lent == each.slots.num_slots, f"{each.name}: slots leased"


def test_the_choice_is_noted_with_both_expectations(mini_store, prompt, streamed_run, budget_bytes):
    config = RuntimeConfig(cache_bytes=budget_bytes(mini_store, 0.0))
    _, events = streamed_run(mini_store, prompt[:40], config, tile=20, decoded=1)
    marks = events.filter(pl.col("name").is_in(["prefill_macro", "prefill_micro"]))
    assert marks.group_by("position").len()["len"].to_list() == [2, 2]
    for _, pair in marks.group_by("position"):
        chosen, rejected = (pair.filter(outcome=outcome)["duration_ns"][0] for outcome in ("chosen", "rejected"))
        assert 0 < chosen <= 1.02 * rejected


def test_a_forced_macro_without_room_for_a_ring_is_refused(mini_store, budget_bytes):
    config = RuntimeConfig(cache_bytes=budget_bytes(mini_store, 0.0), prefill="macro", ring_share=0.01)
    with pytest.raises(BadInput, match="raise cache_bytes or ring_share"):
        StreamedEngine(mini_store, config, EventLog())


def assert_orders_change_nothing(store, tokens, cache_bytes, wanted, seeds):
    for mode in MODES:
        for seed in seeds:
            reader = ShuffledReader(PreadReader(), seed)
            config = RuntimeConfig(cache_bytes=cache_bytes, ring_share=0.6, prefill=mode)
            with StreamedEngine(store, config, EventLog(), reader=reader) as engine:
                logits = Session(engine, tile=40).prefill(tokens)
            np.testing.assert_array_equal(logits, wanted[2][0], f"order {seed}, {mode}")


def test_random_orders_of_completion_change_nothing(two_tables, tiny_tokens, tiny_reference, budget_bytes):
    store = two_tables[1]
    assert_orders_change_nothing(store, tiny_tokens, budget_bytes(store, 0.6), tiny_reference[40], range(5))


@pytest.mark.soak
def test_hundreds_of_random_orders_change_nothing(two_tables, tiny_tokens, tiny_reference, budget_bytes):
    store = two_tables[1]
    assert_orders_change_nothing(store, tiny_tokens, budget_bytes(store, 0.6), tiny_reference[40], range(250))
