"""A predictor from a file of 40 lines runs in generate, in comparisons and in the twin, unchanged."""

from pathlib import Path

import pytest

from workbench.abba.plans import compare_generate
from workbench.abba.records import Code
from workbench.abba.runner import read_cohorts, run_abba
from workbench.experiments.generate import GenerateConfig, run_generate
from workbench.experiments.simulation import TwinRunConfig, simulate_twin
from workbench.schema import RunFolder, read_events

FILE = Path(__file__).parents[1] / "data" / "popular.py"
POPULAR = f"{FILE}:Popular"
SETTINGS = {"turns": ["def main():"], "max_tokens": 8, "bandwidth_gbps": 1.0, "attribution_tokens": 0, "warm_up_tokens": 4}


def events_of(folder):
    return read_events(folder.path / "events.parquet")


def assert_it_predicted(events):
    predicted = events.filter(kind="predict")
    assert set(predicted["name"]) == {"popular"}
    assert predicted["value"].max() == 10
    assert (predicted["hits"] + predicted["joined"] + predicted["misses"] + predicted["refused"] == predicted["value"]).all()
    read = events.filter(kind="ticket", intent="predicted")
    assert read.height
    assert set(read["predictor"]) == {"popular"}
    assert set(read["priority"]) == {1}
    assert read["confidence"].is_between(0, 1).all()


def test_it_is_short_and_shown_as_it_is():
    code = FILE.read_text()
    assert len(code.splitlines()) <= 40
    assert code in (FILE.parents[2] / "CONTRIBUTING.md").read_text()


@pytest.fixture
def small_cache(mini_store):
    from workbench.runtime.store_cache import cache_limits
    from workbench.stores import open_store

    return cache_limits(open_store(mini_store))[0].num_bytes + (4 << 20)


def test_in_a_live_run_it_moves_bytes_and_decides_nothing(small_cache, tmp_path):
    def run(predictor):
        runtime = {"cache_bytes": small_cache, "predictor": predictor}
        return run_generate(GenerateConfig.build(SETTINGS | {"runtime": runtime}), root=tmp_path).folder

    plain, predicted = run("nothing"), run(POPULAR)
    for tag in ("output_digest", "state_digest", "routing_digest"):
        assert plain.result.tags[tag] == predicted.result.tags[tag]
    assert_it_predicted(events_of(predicted))
    assert events_of(plain).filter(kind="predict").height == 0
    assert "@sha256:" in (predicted.path / "config.toml").read_text(), "the file's digest is part of the configuration"
    classes = predicted.result.tables["classes"]
    assert {(row["store"], row["class"]) for row in classes} >= {("expert", "P0"), ("expert", "P1"), ("ple", "P0")}


def test_in_the_twin_it_is_the_same(tmp_path):
    config = TwinRunConfig.build(
        {"routes": {"tokens": 12, "layers": 6, "requests": 1}, "twin": {"num_slots": 120, "predictor": POPULAR}}
    )
    assert_it_predicted(events_of(simulate_twin(config, tmp_path)))


def test_in_a_comparison_its_arms_are_equal_to_those_without(small_cache, tmp_path):
    base = SETTINGS | {"runtime": {"cache_bytes": small_cache}}
    config = compare_generate(base, [f"runtime.predictor={POPULAR}"], {"cohorts": 1, "max_cohorts": 1, "warmups": 0})
    assert "@sha256:" in config.change[0], "the file's digest is part of the question"
    folder = run_abba(config, root=tmp_path, note=lambda line: None)
    (cohort,) = read_cohorts(folder)
    assert not {reason.code for reason in cohort.reasons} & {Code.PLAN_DIFFERS, Code.ARM_FAILED, Code.STATE_DIFFERS}
    arms = [RunFolder(folder.path / arm.folder).result for arm in cohort.arms]
    assert len({arm.config_digest for arm in arms}) == 2
    assert len({(arm.tags["state_digest"], arm.tags["routing_digest"]) for arm in arms}) == 1
