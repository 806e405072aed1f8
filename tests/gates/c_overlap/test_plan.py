"""Gate C's comparisons, the configurations of their arms, and its prefill modes' store."""

import pytest

from workbench.errors import BadInput
from workbench.gates.c_overlap import OverlapConfig
from workbench.gates.c_overlap.modes import modes_profile
from workbench.gates.c_overlap.plan import EARLY, LANES, SPLIT, WAVES, comparisons
from workbench.gates.shared.comparisons import Job, abba_config, jobs
from workbench.runtime.config import RuntimeConfig
from workbench.schema import Evidence


def jobs_of(config):
    return jobs(config, comparisons(config))


def test_a_plan_differs_from_the_defaults_by_its_setting_its_disk_and_a_small_cache(mini_store):
    every = {job.comparison.name: abba_config(OverlapConfig(), job) for job in jobs_of(OverlapConfig())}
    waves = every[WAVES]
    runtime = waves.base["runtime"]
    assert (runtime["wave"], waves.change) == ("barrier", ("runtime.wave=1",))
    assert (waves.evidence, waves.profile, waves.base["bandwidth_gbps"]) == (Evidence.EMULATED, "mini", 0.0125)
    assert (waves.cohorts, waves.max_cohorts, waves.warmups, waves.cache_state) == (4, 6, 0, "warm_store")
    assert runtime["uncached"] is False
    assert waves.base["warm_up_tokens"] > 0
    assert every["split records"].change == ("runtime.split_components=true",)
    assert every["next layer"].base["runtime"]["predictor"] == "nothing"
    assert every["next layer"].cohorts == 1
    assert {config.base["runtime"]["cache_bytes"] for config in every.values()} == {runtime["cache_bytes"]}
    physical = OverlapConfig(envelopes=("",), profile="mini")
    cold = abba_config(physical, jobs_of(physical)[0])
    assert (cold.evidence, cold.cache_state, cold.base["runtime"]["uncached"]) == (Evidence.PHYSICAL, "cold_store", True)


def test_an_unknown_comparison_is_named():
    with pytest.raises(BadInput, match="no comparison 'wave'"):
        jobs_of(OverlapConfig(envelopes=("",), compare=("wave",)))


def test_a_job_says_what_it_compares_and_where():
    job = jobs_of(OverlapConfig(envelopes=("/some/where/slow.json",), compare=(WAVES,)))[0]
    assert (job.words, Job(disk="", comparison=job.comparison).words) == ("waves on slow", "waves on this disk")


def test_hits_are_resolved_on_the_device_only_where_records_are_small():
    assert "misses read back" in [each.name for each in comparisons(OverlapConfig())]
    assert "misses read back" not in [each.name for each in comparisons(OverlapConfig(profile="flash-next"))]


def test_mini_borrows_a_layer_of_slice_where_there_is_one(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path))
    monkeypatch.delenv("WORKBENCH_STORE", raising=False)
    assert modes_profile(OverlapConfig()) == "mini"
    manifest = tmp_path / "data" / "stores" / "slice" / "manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.touch()
    assert modes_profile(OverlapConfig()) == "slice"
    assert modes_profile(OverlapConfig(smoke=True)) == "mini"
    assert modes_profile(OverlapConfig(profile="flash-next")) == "flash-next"


def test_what_decides_runs_on_every_disk_what_is_shown_on_the_first():
    every = jobs_of(OverlapConfig())
    deciding = [job for job in every if job.comparison.decides]
    assert len(deciding) == 4 * len(OverlapConfig().disks)
    assert {job.disk for job in every if not job.comparison.decides} == {OverlapConfig().disks[0]}
    names = [each.name for each in comparisons(OverlapConfig())]
    assert {"waves of 2", "waves of 4", "waves of all", "next layer", "misses read back"} <= set(names)
    assert "waves of 1" not in names
    assert OverlapConfig().wave == RuntimeConfig().wave
    decided = jobs_of(OverlapConfig(envelopes=("",), shown_cohorts=0))
    assert [job.comparison.name for job in decided] == [WAVES, EARLY, LANES, SPLIT]
