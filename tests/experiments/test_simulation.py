"""Simulations leave result folders that say so; sweeps go on where they stopped."""

import json

import numpy as np
import polars as pl
import pytest

from workbench.errors import BadInput
from workbench.experiments import sweep as sweep_module
from workbench.experiments.simulation import (
    MissesConfig,
    RoutesConfig,
    TwinRunConfig,
    load_routes,
    simulate_misses,
    simulate_twin,
)
from workbench.experiments.sweep import SweepConfig, run_point, run_sweep
from workbench.schema import EVENT_SCHEMA, EventLog, Evidence, list_runs, write_routes
from workbench.simulate.events import route_frame
from workbench.simulate.stages import StageTimes
from workbench.simulate.twin import TwinConfig

SMALL = {"layers": 6, "experts": 64, "top_k": 4, "tokens": 20, "requests": 2}
TWIN = {"routes": {**SMALL, "requests": 1}, "twin": {"num_slots": 40, "record_bytes": 10_000}, "token_ms": 1.0}


@pytest.mark.parametrize("source", ["flash-next-like", "independent", "repeated", "loop", "scan"])
def test_made_up_routes_have_their_geometry(source):
    routes = load_routes(RoutesConfig(source=source, **SMALL, period=5, hot=8))
    assert (routes.num_layers, routes.num_experts, routes.profile) == (6, 64, "slice")
    assert routes.frame.height == 2 * 20 * 6
    assert routes.frame["family"].unique().to_list() == [source]


def test_unknown_routes_are_refused():
    with pytest.raises(BadInput, match=r"routes 'lop' are neither a .parquet trace nor one of flash-next-like"):
        load_routes(RoutesConfig(source="lop"))


def test_misses_count_decoded_tokens_of_one_session(tmp_path):
    # one layer, two tokens a request, the first of each a prompt's: the second request finds the first one's records
    routes = np.array([[[[0, 1]], [[2, 3]]], [[[2, 3]], [[0, 4]]]], np.int16)
    frame = route_frame(routes, family="made").with_columns(
        phase=pl.when(pl.col("position") == 0).then(pl.lit("prefill")).otherwise(pl.lit("decode"))
    )
    write_routes(frame, tmp_path / "routes.parquet", num_layers=1, num_experts=10, top_k=2)
    config = MissesConfig.build(
        {
            "routes": {"source": str(tmp_path / "routes.parquet")},
            "policies": ["lru", "belady"],
            "fractions": [0.4],
            "resamples": 50,
        }
    )
    folder = simulate_misses(config, root=tmp_path)
    result = folder.result
    assert result.evidence is Evidence.SIMULATED
    rows = result.tables["misses"]
    assert [(row["policy"], row["num_slots"], row["misses_per_token"]) for row in rows] == [("lru", 4, 1.5), ("belady", 4, 1.5)]
    assert (rows[0]["misses_per_token_low"], rows[0]["misses_per_token_high"]) == (1.0, 2.0)
    assert rows[0]["times_belady"] == 1.0
    assert pl.read_parquet(folder.artifacts / "misses.parquet").height == 2


def test_a_twin_run_leaves_a_folder_like_a_live_one(tmp_path):
    folder = simulate_twin(TwinRunConfig.build(TWIN), root=tmp_path)
    result = folder.result
    assert (result.evidence, result.kind, result.profile) == (Evidence.SIMULATED, "simulate", "slice")
    assert result.metrics["e2e/decode_tps"] < 1000 / 1.0
    assert len(result.per_token["overlap/exposed_wait_ms"]) == 19
    assert dict(pl.read_parquet(folder.path / "events.parquet").schema) == EVENT_SCHEMA
    again = simulate_twin(TwinRunConfig.build(TWIN), root=tmp_path).result
    assert again.metrics == result.metrics


def test_stage_times_of_a_run_or_a_file_are_used(tmp_path):
    folder = simulate_twin(TwinRunConfig.build(TWIN), root=tmp_path)
    with pytest.raises(BadInput, match="has no stage times"):
        simulate_twin(TwinRunConfig.build({**TWIN, "stages": str(folder.path)}), root=tmp_path)
    log = EventLog()
    for layer in range(6):
        log.add(0, "stage", name="gdn", layer=layer, position=0, duration_ns=1_000_000)
    live = tmp_path / "live"
    live.mkdir()
    log.write(live / "events.parquet")
    slow = simulate_twin(TwinRunConfig.build({**TWIN, "stages": str(live)}), root=tmp_path).result
    assert slow.metrics["e2e/tpot_p50_ms"] > 6
    path = tmp_path / "stages.json"
    path.write_text(StageTimes.uniform(6, 20.0).model_dump_json())
    slower = simulate_twin(TwinRunConfig.build({**TWIN, "stages": str(path)}), root=tmp_path).result
    assert slower.metrics["e2e/tpot_p50_ms"] >= 20


def test_an_unknown_envelope_is_refused_before_a_folder_exists(tmp_path):
    with pytest.raises(BadInput, match="no envelope 'floppy'; bundled are"):
        simulate_twin(TwinRunConfig.build({**TWIN, "envelope": "floppy"}), root=tmp_path)
    assert not list(list_runs(tmp_path))


def test_a_sweep_goes_on_where_it_stopped(tmp_path, monkeypatch):
    config = SweepConfig.build(
        {"routes": {**SMALL, "requests": 1}, "num_slots": [30, 60], "waves": ["barrier"], "token_ms": 1.0, "workers": 1}
    )
    ran = []

    def stop_at_the_fourth(point):
        ran.append(point)
        if len(ran) == 4:
            raise KeyboardInterrupt
        return run_point(point)

    monkeypatch.setattr(sweep_module, "run_point", stop_at_the_fourth)
    with pytest.raises(KeyboardInterrupt):
        run_sweep(config, root=tmp_path)
    (interrupted,) = list_runs(tmp_path, "simulate")
    kept = len(list((interrupted.artifacts / "points").iterdir()))

    folder = run_sweep(config, root=tmp_path)
    assert len(ran) == 4 + 8 - kept
    table = pl.read_parquet(folder.artifacts / "sweep.parquet")
    assert table.height == 8
    assert table["predictor"].unique().sort().to_list() == ["nothing", "oracle, 1 ahead"]
    assert table.to_dicts() == folder.result.tables["sweep"]
    assert folder.result.evidence is Evidence.SIMULATED


def test_sweep_points_are_those_of_single_runs(tmp_path):
    config = SweepConfig.build(
        {
            "routes": {**SMALL, "requests": 1},
            "num_slots": [40],
            "policies": ["lfru"],
            "waves": [1],
            "token_ms": 1.0,
            "workers": 1,
        }
    )
    rows = run_sweep(config, root=tmp_path).result.tables["sweep"]
    single = TwinRunConfig(routes=config.routes, twin=TwinConfig(num_slots=40, wave=1), token_ms=1.0)
    alone = simulate_twin(single, root=tmp_path).result
    assert rows[0]["tokens_per_s"] == alone.metrics["e2e/decode_tps"]
    assert json.loads(json.dumps(rows)) == rows
