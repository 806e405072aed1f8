import numpy as np
import polars as pl
import pytest

from workbench.analysis.detectors import run_detectors
from workbench.analysis.run_metrics import run_metrics
from workbench.errors import BadInput
from workbench.paths import bundled_model
from workbench.readers import Fault, FaultKind, FaultyReader, PreadReader, ShuffledReader
from workbench.runtime import chunks, pool
from workbench.runtime.engine import ResidentEngine, RuntimeConfig, StreamedEngine
from workbench.runtime.session import Session
from workbench.runtime.transfer import RequestFailed
from workbench.schema import EventLog

MODES = ("macro", "micro")


@pytest.fixture(scope="module")
def reference(mini_tokens, resident_run):
    """Digests of the resident path by tile."""
    known = {}

    def run(tile):
        if tile not in known:
            known[tile] = resident_run(bundled_model(), mini_tokens, tile=tile, decoded=3)
        return known[tile]

    return run


def assert_equal_runs(streamed, resident):
    assert streamed[0] == resident[0], "state digests differ"
    assert streamed[1] == resident[1], "routing digests differ"
    np.testing.assert_array_equal(streamed[2], resident[2])


def modes_of(events):
    marks = events.filter(pl.col("name").str.starts_with("prefill_") & (pl.col("outcome") == "chosen"))
    return marks["name"].str.strip_prefix("prefill_").to_list()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("share", "tile"), [(0.0, 140), (0.0, 9), (0.1, 48), (0.6, 140), (1.0, 64)])
def test_same_bits_in_every_mode(mini_store, mini_tokens, reference, streamed_run, budget_bytes, mode, share, tile):
    config = RuntimeConfig(cache_bytes=budget_bytes(mini_store, share), prefill=mode)
    digests, events = streamed_run(mini_store, mini_tokens, config, tile=tile, decoded=3)
    assert_equal_runs(digests, reference(tile))
    assert set(modes_of(events)) == {mode}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("settings", [{"ring_share": 0.06}, {"ring_share": 1.0}, {"policy": "lru", "uncached": False}])
def test_same_bits_with_other_rings(mini_store, mini_tokens, reference, streamed_run, budget_bytes, mode, settings):
    config = RuntimeConfig(cache_bytes=budget_bytes(mini_store, 0.1), prefill=mode, **settings)
    digests, _ = streamed_run(mini_store, mini_tokens, config, tile=48, decoded=3)
    assert_equal_runs(digests, reference(48))


@pytest.mark.parametrize("mode", MODES)
def test_same_bits_with_records_that_are_no_multiple_of_a_page(
    two_tables, resident_run, streamed_run, budget_bytes, monkeypatch, mode
):
    monkeypatch.setattr(pool, "SMALL_RECORD_BYTES", 0)
    monkeypatch.setattr(chunks, "_CHUNK_BYTES", 1)
    checkpoint, store = two_tables
    tokens = np.random.default_rng(2).integers(0, 300, 40).tolist()
    config = RuntimeConfig(cache_bytes=budget_bytes(store, 1.0), ring_share=0.7, prefill=mode)
    digests, events = streamed_run(store, tokens, config, tile=20)
    assert_equal_runs(digests, resident_run(checkpoint, tokens, tile=20))
    assert modes_of(events) == [mode, mode]


def test_the_second_reader_of_a_store_has_the_same_bits(mini_store, mini_tokens, reference):
    with ResidentEngine(mini_store, EventLog()) as engine:
        session = Session(engine, tile=48)
        logits = session.prefill(mini_tokens)
        assert engine.identity.keys() == {"store_digest"}
    np.testing.assert_array_equal(logits, reference(48)[2][0])


@pytest.mark.parametrize("mode", MODES)
def test_what_a_mode_reads_is_told_honestly(mini_store, mini_tokens, streamed_run, budget_bytes, mode):
    config = RuntimeConfig(cache_bytes=budget_bytes(mini_store, 0.0), prefill=mode)
    _, events = streamed_run(mini_store, mini_tokens, config, tile=140, decoded=0)
    reads, demands = events.filter(kind="ticket", store="expert"), events.filter(kind="demand", store="expert")
    chosen, record_bytes = demands["logical_bytes"].sum(), 27_648
    metrics = run_metrics(events)
    assert metrics["storage/expert_demand_bytes"] == chosen, "each record of a union is demanded once"
    if mode == "micro":
        assert metrics["storage/expert_wasted_bytes"] == 0
        return
    assert reads["identity"].sort().to_list() == list(range(8 * 128)), "whole layers, every record once"
    assert metrics["storage/expert_wasted_bytes"] == 8 * 128 * record_bytes - chosen > 0
    assert 0 <= metrics["storage/expert_physical_bytes"] - 8 * 128 * record_bytes < 0.2 * 8 * 128 * record_bytes
    assert metrics["storage/expert_read_ops"] < 8 * 128 / 4


def test_no_detector_is_set_off_by_modes(mini_store, mini_tokens, streamed_run, budget_bytes):
    for mode in MODES:
        config = RuntimeConfig(cache_bytes=budget_bytes(mini_store, 0.0), prefill=mode)
        _, events = streamed_run(mini_store, mini_tokens, config, tile=70, decoded=0)
        assert [finding.code for finding in run_detectors(events, run_metrics(events))] == []


def test_reads_run_on_over_the_border_of_a_layer(mini_store, mini_tokens, streamed_run, budget_bytes):
    config = RuntimeConfig(cache_bytes=budget_bytes(mini_store, 0.5), prefill="macro")
    _, events = streamed_run(mini_store, mini_tokens, config, tile=140, decoded=0)
    reads = events.filter(kind="ticket", store="expert")
    routed = events.filter(kind="demand", store="expert")
    first_read = dict(reads.group_by("layer").agg(pl.col("submit_ns").min()).iter_rows())
    router_spoke = dict(routed.select("layer", "t_ns").iter_rows())
    assert all(first_read[layer] < router_spoke[layer - 1] for layer in range(1, 8))


@pytest.mark.parametrize("mode", MODES)
def test_prefill_leaves_decode_its_records(mini_store, mini_tokens, budget_bytes, mode):
    config = RuntimeConfig(cache_bytes=budget_bytes(mini_store, 0.1), prefill=mode)
    with StreamedEngine(mini_store, config, EventLog()) as engine:
        session = Session(engine)
        slots = engine.scheduler.pools["expert"].slots
        logits = session.prefill(mini_tokens[:4])
        while slots.num_free:
            logits = session.decode(int(np.argmax(logits)) if slots.num_free % 2 else int(slots.num_free))
        before = slots.resident_keys
        session.prefill(mini_tokens * 2)
        lost = len(before - slots.resident_keys)
        assert 0 < lost <= config.ring_share * slots.num_slots + 1
        session.decode(5)
        assert slots.num_lent == 0


def test_the_hottest_records_of_a_prompt_stay(mini_store, mini_tokens, budget_bytes):
    config = RuntimeConfig(cache_bytes=budget_bytes(mini_store, 0.2), prefill="micro")
    with StreamedEngine(mini_store, config, EventLog()) as engine:
        heat = {}

        def note(step, layer, tokens, ids, weights):
            for key in (ids.ravel() + 128 * layer).tolist():
                heat[key] = heat.get(key, 0) + 1

        session = Session(engine, tile=140, route_sink=note)
        session.prefill(mini_tokens)
        there = engine.scheduler.pools["expert"].slots.resident_keys
        stayed = np.mean([heat[key] for key in there])
        assert stayed > 1.5 * np.mean([heat[key] for key in heat.keys() - there])


class Broken:
    """An engine whose reads fail from the `first` one on, until `mend` is called."""

    def __init__(self, store, mode, cache_bytes, first, kind):
        self.first, self.kind = first, kind
        reader = FaultyReader(PreadReader(), lambda n: Fault(kind=self.kind) if n >= self.first else None)
        self.engine = StreamedEngine(store, RuntimeConfig(cache_bytes=cache_bytes, prefill=mode), EventLog(), reader=reader)

    def mend(self):
        self.first = 1 << 60


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [FaultKind.ERROR, FaultKind.SHORT, FaultKind.CORRUPT])
def test_a_tile_that_fails_changes_nothing_and_the_next_one_works(mini_store, mini_tokens, reference, budget_bytes, mode, kind):
    broken = Broken(mini_store, mode, budget_bytes(mini_store, 0.0), 60, kind)
    with broken.engine as engine:
        session = Session(engine, tile=48)
        before = session.state.digest()
        with pytest.raises(RequestFailed, match="could not be read"):
            session.prefill(mini_tokens)
        assert session.state.digest() == before
        broken.mend()
        logits = [session.prefill(mini_tokens)]
        for _ in range(3):
            logits.append(session.decode(int(np.argmax(logits[-1]))))
        np.testing.assert_array_equal(np.stack(logits), reference(48)[2])
        for each in engine.scheduler.pools.values():
            assert each.slots.num_available + each.slots.num_lent == each.slots.num_slots, f"{each.name}: slots leased"


def test_the_choice_is_noted_with_both_expectations(mini_store, mini_tokens, streamed_run, budget_bytes):
    config = RuntimeConfig(cache_bytes=budget_bytes(mini_store, 0.0))
    _, events = streamed_run(mini_store, mini_tokens, config, tile=48, decoded=2)
    marks = events.filter(pl.col("name").is_in(["prefill_macro", "prefill_micro"]))
    assert marks.group_by("position").len()["len"].to_list() == [2, 2, 2]
    for _, pair in marks.group_by("position"):
        chosen, rejected = (pair.filter(outcome=outcome)["duration_ns"][0] for outcome in ("chosen", "rejected"))
        assert 0 < chosen <= rejected


def test_a_forced_macro_without_room_for_a_ring_is_refused(mini_store, budget_bytes):
    config = RuntimeConfig(cache_bytes=budget_bytes(mini_store, 0.0), prefill="macro", ring_share=0.01)
    with pytest.raises(BadInput, match="raise cache_bytes or ring_share"):
        StreamedEngine(mini_store, config, EventLog())


def assert_orders_change_nothing(store, tokens, cache_bytes, wanted, seeds):
    for mode in MODES:
        for seed in seeds:
            reader = ShuffledReader(PreadReader(), seed)
            config = RuntimeConfig(cache_bytes=cache_bytes, prefill=mode)
            with StreamedEngine(store, config, EventLog(), reader=reader) as engine:
                session = Session(engine, tile=48)
                np.testing.assert_array_equal(session.prefill(tokens), wanted[2][0], f"order {seed}, {mode}")


def test_random_orders_of_completion_change_nothing(mini_store, mini_tokens, reference, budget_bytes):
    assert_orders_change_nothing(mini_store, mini_tokens, budget_bytes(mini_store, 0.05), reference(48), range(3))


@pytest.mark.soak
def test_hundreds_of_random_orders_change_nothing(mini_store, mini_tokens, reference, budget_bytes):
    assert_orders_change_nothing(mini_store, mini_tokens, budget_bytes(mini_store, 0.05), reference(48), range(100))
