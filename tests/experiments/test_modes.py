import numpy as np
import polars as pl
import pytest

from workbench.errors import BadInput
from workbench.experiments import modes
from workbench.experiments.modes import ModesConfig, TimedWork, crossover_rows, draw_heat, measure_modes, run_modes
from workbench.readers import VirtualClock
from workbench.runtime.config import RuntimeConfig
from workbench.runtime.crossover import DiskRates
from workbench.schema import Evidence, Status


@pytest.fixture
def config(mini_store, monkeypatch):
    """Three tiles of one layer of the packed mini store, on a disk that nobody has to probe."""
    rates = DiskRates(sparse_bytes_per_s=1e9, sequential_bytes_per_s=1e9, source="given")
    monkeypatch.setattr(modes, "known_bandwidth", lambda *_: None)
    monkeypatch.setattr(modes, "known_rates", lambda *_: rates)
    runtime = RuntimeConfig(cache_bytes=16 << 20)
    return ModesConfig(profile="mini", layer=3, tiles=(1, 9, 60), repeats=2, before_us=10, pair_us=1, runtime=runtime)


def test_tokens_choose_different_experts_all_equally_likely():
    heat = draw_heat(2000, 64, 4, np.random.default_rng(1))
    rows = np.array([heat[expert] for expert in range(64)])
    assert rows.sum() == 8000
    assert rows.max() <= 2000
    assert abs(rows / 125 - 1).max() < 0.4
    assert len(draw_heat(1, 64, 4, np.random.default_rng(1))) == 4


def test_timed_experts_queue_behind_each_other():
    clock = VirtualClock()
    work = TimedWork(clock, {1: 10, 2: 5}, pair_us=2.0)
    first, second = work.begin([1], []), work.begin([2], [])
    assert (first, second) == (20_000, 30_000)
    work.finish(second)
    assert clock.now_ns() == 30_000
    clock.sleep_until(90_000)
    assert work.begin([1, 2], []) == 120_000


def test_every_tile_runs_in_every_mode_and_leaves_nothing_behind(config):
    passes = measure_modes(config).passes
    assert passes.group_by("tile", "mode").len()["len"].to_list() == [2] * 9
    record_bytes, layer_bytes = 27_648, 128 * 27_648
    for row in passes.iter_rows(named=True):
        assert row["layer_bytes"] == layer_bytes
        assert row["chosen"] == row["mode"] or row["mode"] == "auto"
        least = layer_bytes if row["chosen"] == "macro" else row["union_bytes"]
        assert least <= row["physical_bytes"] <= 1.5 * least, "an earlier pass left records behind, or too much was read"
        assert row["seconds"] >= row["tile"] * 20e-6
        assert 0 < row["io_s"] < row["seconds"] + 0.01
    same = passes.group_by("tile", "repeat").agg(pl.col("union_bytes").n_unique())
    assert same["union_bytes"].to_list() == [1] * 6, "modes are compared on the same routes"
    assert passes.filter(tile=1)["union_bytes"].to_list() == [10 * record_bytes] * 6


def test_the_table_says_what_the_choice_cost():
    def row(mode, chosen, seconds):
        return {
            "tile": 16, "repeat": 0, "mode": mode, "chosen": chosen, "seconds": seconds, "wait_s": 0.1, "io_s": 0.5,
            "physical_bytes": 4e8, "union_bytes": 3e8, "layer_bytes": 4e8,
        }  # fmt: skip

    passes = pl.DataFrame([row("micro", "micro", 1.0), row("macro", "macro", 1.5), row("auto", "macro", 1.4)])
    rates = DiskRates(sparse_bytes_per_s=1e9, sequential_bytes_per_s=1e9, source="given")
    (told,) = crossover_rows(modes.ModeRuns(passes=passes, rates=rates))
    assert (told["chosen"], told["chosen_over_better"], told["unique_fraction"]) == ("macro", 1.5, 0.75)
    assert (told["macro_overread_bytes"], told["macro_gbps"], told["macro_over_sequential"]) == (1e8, 0.8, 0.8)


def test_a_run_leaves_an_emulated_result(config, tmp_path):
    folder = run_modes(config.model_copy(update={"tiles": (9,), "repeats": 1}), root=tmp_path)
    result = folder.result
    assert (result.status, result.evidence, result.tags["rates_source"]) == (Status.FINISHED, Evidence.EMULATED, "given")
    assert pl.read_parquet(folder.artifacts / "modes.parquet").height == 3
    assert [row["tile"] for row in result.tables["crossover"]] == [9]


def test_what_can_not_run_is_refused(config):
    with pytest.raises(BadInput, match="8 layers"):
        measure_modes(config.model_copy(update={"layer": 8}))
    small = RuntimeConfig(cache_bytes=5 << 20, ring_share=0.01)
    with pytest.raises(BadInput, match="too small for a ring"):
        measure_modes(config.model_copy(update={"runtime": small}))
