"""The twin keeps time by hand-computed figures, decides like the replay, and is the same twice."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import polars as pl
import pytest

from workbench.analysis.run_metrics import run_metrics
from workbench.errors import BadInput
from workbench.prediction import PredictorSettings
from workbench.schema import EVENT_SCHEMA
from workbench.schema.envelopes import Envelope
from workbench.simulate.events import array_events, route_frame
from workbench.simulate.passes import in_turns, passes
from workbench.simulate.replay import miss_counts
from workbench.simulate.stages import StageTimes
from workbench.simulate.synthetic import RouteModel, synthetic_routes
from workbench.simulate.twin import Twin, TwinConfig

# one read alone takes 10 us + 1 us a page; the pipe lets a page through in 1 us
ENVELOPE = Envelope(name="toy", device="none", source="test", latency_us=10, stream_gbps=4.096, bandwidth_gbps=4.096, iops=1e9)
RECORD_BYTES = 4096 * 10  # 10 us in the pipe, 20 us alone
MODEL = RouteModel(num_layers=6, num_experts=64, top_k=4, num_early_layers=1)
STAGES = StageTimes.uniform(6, 0.3)


def decode_passes(routes):
    return list(passes(route_frame(np.array(routes), family="toy"), 64, tile=8))


def toy(**columns):
    return TwinConfig(**{"record_bytes": RECORD_BYTES, "num_experts": 64, "policy": "lru", "num_slots": 60} | columns)


@pytest.fixture(scope="module")
def routes():
    return synthetic_routes(MODEL, num_requests=2, num_tokens=60, seed=0)


def run(routes, **columns):
    return Twin(toy(**columns), STAGES, ENVELOPE).run(decode_passes(routes)).frame()


def token_ns(frame):
    return frame.filter(kind="token")["duration_ns"].to_numpy()


def test_a_token_by_hand():
    stages = StageTimes(source="test", pre_router_us=(100, 200), shared_us=(5, 5), experts_us=(40, 60), head_us=7)
    layers = decode_passes([[[[0, 1], [2, 3]], [[0, 1], [2, 9]]]])
    for wave, expected_us in {
        # two reads at once: the second leaves the pipe when the first one's own 20 us are over; the shared expert hides in them
        "barrier": [(100 + 20 + 40) + (200 + 20 + 60) + 7, (100 + 5 + 40) + (200 + 20 + 60) + 7],
        # in the last layer the shared expert and the one that is there hide the whole read
        1: [(100 + 20 + 40) + (200 + 20 + 60) + 7, (100 + 5 + 40) + (200 + 5 + 60) + 7],
    }.items():
        frame = Twin(toy(wave=wave), stages, ENVELOPE).run(layers).frame()
        assert (token_ns(frame) / 1000).tolist() == pytest.approx(expected_us), wave


@pytest.mark.parametrize(("wave", "ready_us"), [("barrier", 40), ("all", 40), (4, 40), (2, 20), (1, 20)])
def test_a_wave_waits_for_its_own_records_only(wave, ready_us):
    # four reads leave the pipe at 20, 20, 30 and 40 us; an expert takes 30, so what comes after the first two hides
    stages = StageTimes(source="test", pre_router_us=(100,), shared_us=(5,), experts_us=(120,))
    frame = Twin(toy(wave=wave), stages, ENVELOPE).run(decode_passes([[[[0, 1, 2, 3]]]])).frame()
    assert (token_ns(frame) / 1000).tolist() == [100 + ready_us + 120]
    assert (frame.filter(kind="wait")["duration_ns"] / 1000).to_list() == [ready_us - 5]


def test_what_reads_cost_the_computing_thread_is_added():
    stages = StageTimes(source="test", pre_router_us=(100,), shared_us=(0,), experts_us=(40,), ask_us=3, take_us=2)
    frame = Twin(toy(wave="barrier"), stages, ENVELOPE).run(decode_passes([[[[0, 1]], [[0, 1]]]])).frame()
    # both are asked for, then both come 20 us later and are taken one after the other; hits cost nothing
    assert (token_ns(frame) / 1000).tolist() == [100 + 2 * 3 + 20 + 2 * 2 + 40, 100 + 40]
    assert (frame.filter(kind="wait")["duration_ns"] / 1000).to_list() == [20 + 2 * 2]


def test_stage_times_scale_to_a_measured_token():
    scaled = StageTimes.uniform(4, 10.0).scaled(2_000_000)
    assert scaled.token_ns == 2_000_000
    assert scaled.pre_router_us == pytest.approx((250,) * 4)


def test_a_window_is_the_pages_that_its_record_touches(routes):
    tickets = run(routes, record_bytes=7168).filter(kind="ticket", store="expert")
    by_key = dict(tickets.select("identity", "physical_bytes").iter_rows())
    # they start 0, 3,072, 2,048 and 1,024 bytes behind a page
    assert {key % 64 % 4: moved for key, moved in by_key.items()} == {0: 8192, 1: 12_288, 2: 12_288, 3: 8192}


def test_pages_of_earlier_tokens_hit(routes):
    never, always_old = (run(routes, ple_pages=4, ple_reuse=reuse, ple_slots=64) for reuse in (0.0, 0.9))
    counts = [run_metrics(frame) for frame in (never, always_old)]
    assert counts[0]["ple/page_hits"] == 0
    assert counts[1]["ple/page_hits"] > 2 * counts[1]["ple/page_misses"]
    # a cache below what is used again hits less
    small = run_metrics(run(routes, ple_pages=4, ple_reuse=0.9, ple_slots=8))
    assert small["ple/page_hits"] < 0.8 * counts[1]["ple/page_hits"]


def test_pages_of_the_passes_are_asked_for_early_and_in_parts_that_fit(routes):
    tile = [replace(each, pages={1: tuple(range(10))}) for each in decode_passes(routes)[:2]]
    frame = Twin(toy(ple_slots=4), STAGES, ENVELOPE).run(tile).frame()
    demands = frame.filter(kind="demand", store="ple")
    assert demands["misses"].to_list() == [4, 4, 2] * 2
    first_layer = frame.filter(kind="demand", store="expert", layer=0)["t_ns"]
    assert demands["t_ns"][0] < first_layer[0] < demands["t_ns"][1]


def test_events_have_the_live_schema_and_metrics(routes):
    frame = run(routes, ple_pages=3)
    assert dict(frame.schema) == EVENT_SCHEMA
    metrics = run_metrics(frame)
    assert metrics["e2e/decode_tps"] > 0
    assert metrics["ple/page_misses"] == 3 * 120
    assert metrics["overlap/io_wall_ms"] >= metrics["overlap/exposed_wait_ms"] > 0


def test_the_same_seed_gives_the_same_events(routes):
    def drawn(seed):
        noise = PredictorSettings(recall=0.7, precision=0.6, lead_layers=2, seed=seed)
        return run(routes, seed=seed, predictor="noisy_oracle", predictor_settings=noise, ple_pages=2)

    first, again, other = (drawn(seed) for seed in (1, 1, 2))
    assert first.equals(again)
    assert not first.equals(other)


@pytest.mark.parametrize("policy", ["lru", "lfru", "arc", "s3-fifo", "score"])
def test_without_predictions_it_misses_what_the_replay_misses(routes, policy):
    demands = run(routes, policy=policy).filter(kind="demand", store="expert")
    assert demands["misses"].to_list() == miss_counts(array_events(routes, 64), 60, policy).tolist()
    assert demands["joined"].sum() == 0


def test_compute_and_waits_add_up(routes):
    frame = run(routes)
    waited = frame.filter(kind="wait")["duration_ns"].sum()
    compute = sum(STAGES.token_ns for _ in range(120))
    assert token_ns(frame).sum() == pytest.approx(compute + waited, abs=120 * 6 * 4)


def test_reads_while_compute_goes_on_shorten_the_token(routes):
    barrier, ready = (token_ns(run(routes, wave=wave)).sum() for wave in ("barrier", 1))
    assert STAGES.token_ns * 120 < ready < barrier


def test_a_perfect_oracle_hides_what_the_disk_can_carry(routes):
    none = run_metrics(run(routes))
    perfect = run_metrics(run(routes, predictor="oracle"))
    noise = PredictorSettings(recall=0.5, precision=0.5)
    noisy = run_metrics(run(routes, predictor="noisy_oracle", predictor_settings=noise))
    assert perfect["overlap/exposed_wait_ms"] < 0.2 * none["overlap/exposed_wait_ms"]
    assert perfect["overlap/exposed_wait_ms"] < noisy["overlap/exposed_wait_ms"] < none["overlap/exposed_wait_ms"]
    assert perfect["storage/expert_wasted_bytes"] == 0 < noisy["storage/expert_wasted_bytes"]
    # no foresight reads faster than the disk
    slow = ENVELOPE.model_copy(update={"bandwidth_gbps": 0.4096})
    frame = Twin(toy(predictor="oracle"), STAGES, slow).run(decode_passes(routes)).frame()
    num_reads = frame.filter(kind="ticket").height
    assert token_ns(frame).sum() == pytest.approx(num_reads * 100_000, rel=0.1)
    assert token_ns(frame).sum() >= num_reads * 100_000 - 20_000


def test_a_cache_that_holds_everything_waits_only_for_first_uses(routes):
    frame = run(routes, num_slots=6 * 64)
    assert frame.filter(kind="demand")["misses"].sum() == len(np.unique(array_events(routes, 64)))
    assert token_ns(run(np.repeat(routes[:1, :1], 5, axis=1)))[1:].tolist() == [STAGES.token_ns] * 4


def test_prompts_run_in_tiles_and_larger_unions_in_parts(routes):
    frame = route_frame(routes[:1], family="toy").with_columns(
        phase=pl.when(pl.col("position") < 20).then(pl.lit("prefill")).otherwise(pl.lit("decode"))
    )
    tiles = list(passes(frame, 64, tile=8))
    assert [(each.phase, each.position, each.num_tokens) for each in tiles[:4]] == [
        ("prefill", 0, 8),
        ("prefill", 8, 8),
        ("prefill", 16, 4),
        ("decode", 20, 1),
    ]
    assert all(len(keys) == len(set(keys)) > 4 for keys in tiles[0].keys)
    events = Twin(toy(num_slots=12), STAGES, ENVELOPE).run(tiles).frame()
    assert events.filter(kind="demand", phase="prefill", position=0).height == sum(-(-len(k) // 12) for k in tiles[0].keys)


def test_stage_times_come_from_an_attribution_run_or_a_file(tmp_path):
    rows = [
        {"kind": "stage", "name": name, "layer": layer, "position": position, "duration_ns": us * 1000, "t_ns": 0}
        for position in (7, 8)
        for layer, name, us in [
            (-1, "head", 10),
            (0, "gdn", 30),
            (0, "router", 5),
            (0, "down", 8),
            (1, "qsa", 50),
            (1, "shared", 4),
        ]
    ]
    stages = StageTimes.from_attribution(pl.DataFrame(rows, schema=EVENT_SCHEMA), "run x")
    assert (stages.pre_router_us, stages.shared_us, stages.experts_us, stages.head_us) == ((35, 50), (0, 4), (8, 0), 10)
    assert stages.token_ns == 107_000
    (tmp_path / "stages.json").write_text(stages.model_dump_json())
    assert StageTimes.from_json(tmp_path / "stages.json") == stages
    with pytest.raises(BadInput, match="run y has no stage times"):
        StageTimes.from_attribution(pl.DataFrame(schema=EVENT_SCHEMA), "run y")
    with pytest.raises(BadInput, match="no such file"):
        StageTimes.from_json(tmp_path / "none.json")


def test_what_cannot_be_imitated_is_refused(routes):
    with pytest.raises(BadInput, match="belady needs the future"):
        Twin(toy(policy="belady"), STAGES, ENVELOPE)
    with pytest.raises(BadInput, match="the routes have 6 layers, the stage times 2"):
        Twin(toy(), StageTimes.uniform(2, 1.0), ENVELOPE).run(decode_passes(routes))


def test_requests_take_turns_with_idle_time_between(routes):
    turns = in_turns(decode_passes(routes), 3)
    assert [(each.request, each.position) for each in turns if each.position % 20 == 0] == [
        (0, 0), (1, 0), (0, 20), (1, 20), (0, 40), (1, 40)
    ]  # fmt: skip
    frame = Twin(toy(idle_ms=50.0), STAGES, ENVELOPE).run(turns).frame()
    starts = frame.filter(kind="mark")["t_ns"].to_list()
    ends = frame.filter(kind="token")["t_ns"].to_list()
    assert [start - ends[20 * (turn + 1) - 1] for turn, start in enumerate(starts[1:])] == [50_000_000] * 5


def test_a_hot_set_warms_what_its_sequence_used_before_the_turn(routes):
    turns = in_turns(decode_passes(routes), 3)
    columns = {"num_slots": 100, "idle_ms": 50.0}
    cold, warm, no_time = (
        Twin(toy(**columns | extra), STAGES, ENVELOPE).run(turns).frame()
        for extra in ({}, {"hot_set": 40}, {"hot_set": 40, "idle_ms": 0.0})
    )
    warmed = warm.filter(kind="ticket", intent="predicted")
    assert 40 < warmed.height <= 4 * 40
    first = pl.col("position").is_in([20, 40])
    waits = [frame.filter(first, kind="wait")["duration_ns"].sum() for frame in (cold, warm, no_time)]
    assert waits[1] < 0.8 * waits[0]
    # without idle time warming comes too late for a turn's first token, though it goes on while the disk is free
    assert waits[2] > waits[1]


@pytest.mark.soak
def test_clocks_never_go_back(routes):
    noise = PredictorSettings(recall=0.8, precision=0.5, lead_layers=9)
    frame = run(routes, wave=1, predictor="noisy_oracle", predictor_settings=noise)
    ends = frame.filter(kind="token")["t_ns"].to_list()
    assert all(before < after for before, after in pairwise(ends))
    tickets = frame.filter(kind="ticket")
    assert (tickets["ready_ns"] >= tickets["submit_ns"]).all()
    assert (tickets["seen_ns"] >= tickets["ready_ns"]).all()


@pytest.mark.parametrize("wave", ["barrier", 1, 4])
def test_reads_that_wait_for_a_lane_go_when_compute_looks(wave):
    # one read at a time, each over before compute looks again: the next one goes off then
    stages = StageTimes(source="test", pre_router_us=(100,), shared_us=(50,), experts_us=(120,))
    frame = Twin(toy(wave=wave, depth=1), stages, ENVELOPE).run(decode_passes([[[[0, 1, 2, 3]]]])).frame()
    assert frame.filter(kind="ticket").height == 4
    assert token_ns(frame)[0] >= (100 + 50 + 120) * 1000


def test_what_ends_while_another_read_is_taken_is_waited_for():
    # the first two are there when compute looks; the others end while these are taken, and taking them is exposed
    stages = StageTimes(source="test", pre_router_us=(100,), shared_us=(20,), experts_us=(40,), take_us=50)
    frame = Twin(toy(wave="barrier"), stages, ENVELOPE).run(decode_passes([[[[0, 1, 2, 3]]]])).frame()
    assert (frame.filter(kind="wait")["duration_ns"] / 1000).to_list() == [2 * 50]
    assert (token_ns(frame) / 1000).tolist() == [100 + 20 + 4 * 50 + 40]
