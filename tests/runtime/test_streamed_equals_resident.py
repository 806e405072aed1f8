import shutil

import numpy as np
import polars as pl
import pytest

from workbench.errors import BadInput
from workbench.loading.transfer import RequestFailed
from workbench.paths import bundled_model
from workbench.runtime import memory
from workbench.runtime.config import RuntimeConfig
from workbench.runtime.session import Session
from workbench.runtime.store_cache import cache_limits
from workbench.runtime.streamed import StreamedEngine
from workbench.schema import EventLog
from workbench.stores import open_store


@pytest.fixture(scope="module")
def mini_reference(mini_tokens, resident_run):
    return resident_run(bundled_model(), mini_tokens)


def assert_equal_runs(streamed, resident):
    assert streamed[0] == resident[0], "state digests differ"
    assert streamed[1] == resident[1], "routing digests differ"
    np.testing.assert_array_equal(streamed[2], resident[2])


@pytest.mark.parametrize(
    ("share", "policy", "uncached"),
    [
        (0.0, "lru", True),
        (0.0, "lfru", False),
        (0.1, "lfru", True),
        (0.1, "layer-quota", False),
        (1.0, "lru", False),
        (1.0, "lfru", True),
    ],
)
def test_same_bits_at_every_budget(mini_store, mini_tokens, mini_reference, streamed_run, budget_bytes, share, policy, uncached):
    config = RuntimeConfig(cache_bytes=budget_bytes(mini_store, share), policy=policy, uncached=uncached)
    digests, events = streamed_run(mini_store, mini_tokens, config)
    assert_equal_runs(digests, mini_reference)
    reads = events.filter(kind="ticket", store="expert")
    assert reads.height > 300, "hardly anything was read from the store"
    if share == 1.0:
        assert reads["identity"].is_unique().all(), "with room for everything no record is read twice"


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_same_bits_with_two_tables(two_tables, resident_run, streamed_run, budget_bytes, share):
    checkpoint, store = two_tables
    tokens = np.random.default_rng(1).integers(0, 300, 50).tolist()
    tokens[20] = 0
    config = RuntimeConfig(cache_bytes=budget_bytes(store, share))
    digests, _ = streamed_run(store, tokens, config, tile=17)
    assert_equal_runs(digests, resident_run(checkpoint, tokens, tile=17))


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_large_records_run_slot_by_slot_with_the_same_bits(
    two_tables, resident_run, streamed_run, budget_bytes, monkeypatch, share
):
    monkeypatch.setattr(memory, "SMALL_RECORD_BYTES", 0)
    checkpoint, store = two_tables
    tokens = np.random.default_rng(2).integers(0, 300, 40).tolist()
    digests, _ = streamed_run(store, tokens, RuntimeConfig(cache_bytes=budget_bytes(store, share)), tile=40)
    assert_equal_runs(digests, resident_run(checkpoint, tokens, tile=40))


def test_one_token_at_a_time_equals_tiles_of_any_schedule(two_tables, streamed_run, budget_bytes):
    _, store = two_tables
    tokens = np.random.default_rng(3).integers(0, 300, 30).tolist()
    runs = [
        streamed_run(store, tokens, RuntimeConfig(cache_bytes=budget_bytes(store, share), expert_depth=depth), tile=30)[0]
        for share, depth in ((0.0, 1), (0.0, 8), (1.0, 3))
    ]
    assert_equal_runs(runs[1], runs[0])
    assert_equal_runs(runs[2], runs[0])


def flip_record_byte(store, key_of_record, copy):
    """A copy of `store` with one bit of one record flipped, in the middle of its gate's packed words."""
    shutil.copytree(store, copy)
    opened = open_store(copy)
    extent = opened.experts.record(*divmod(key_of_record, opened.geometry.num_experts))
    with opened.experts.path.open("r+b") as file:
        file.seek(extent.offset + 1000)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 0x10]))
    return copy


@pytest.fixture
def damaged_store(mini_store, mini_tokens, streamed_run, tmp_path):
    """Damaged in a record of layer 3 that the prompt uses and its first token alone does not."""

    def used(tokens):
        _, events = streamed_run(mini_store, tokens, RuntimeConfig(), decoded=0)
        tickets = events.filter((pl.col("kind") == "ticket") & (pl.col("store") == "expert") & (pl.col("layer") == 3))
        return set(tickets["identity"])

    record = min(used(mini_tokens[:20]) - used(mini_tokens[:1]))
    return flip_record_byte(mini_store, record, tmp_path / "damaged")


def test_a_flipped_byte_is_caught_by_its_checksum(damaged_store, mini_tokens, streamed_run):
    with pytest.raises(RequestFailed, match=r"layer 3 could not be read: .*checksum differs"):
        streamed_run(damaged_store, mini_tokens[:20], RuntimeConfig(), decoded=0)


def test_with_checks_off_a_flipped_byte_changes_the_digest(damaged_store, mini_store, mini_tokens, streamed_run):
    short = mini_tokens[:20]
    sound, _ = streamed_run(mini_store, short, RuntimeConfig(checksums=False), decoded=0)
    damaged, _ = streamed_run(damaged_store, short, RuntimeConfig(checksums=False), decoded=0)
    assert damaged[0] != sound[0]


def test_a_failed_pass_leaves_the_committed_state_and_the_next_pass_works(damaged_store, mini_tokens):
    with StreamedEngine(damaged_store, RuntimeConfig(), EventLog()) as engine:
        session = Session(engine)
        before = session.state.digest(), session.routing_digest
        with pytest.raises(RequestFailed):
            session.prefill(mini_tokens[:20])
        assert (session.state.digest(), session.routing_digest) == before
        assert session.state.position == 0
        logits = session.prefill(mini_tokens[:1])
        assert session.state.position == 1
        assert np.isfinite(logits).all()


def test_a_budget_below_one_token_is_refused_with_both_figures(mini_store):
    least, _ = cache_limits(open_store(mini_store))
    with pytest.raises(BadInput, match=rf"{least.num_bytes - 1:,} bytes .* working set of {least.num_bytes:,} bytes"):
        StreamedEngine(mini_store, RuntimeConfig(cache_bytes=least.num_bytes - 1), EventLog())


def test_belady_and_unknown_policies_are_refused(mini_store):
    with pytest.raises(BadInput, match="future"):
        StreamedEngine(mini_store, RuntimeConfig(policy="belady"), EventLog())
    with pytest.raises(BadInput, match="did you mean lfru"):
        RuntimeConfig.build({"policy": "lfr"})
