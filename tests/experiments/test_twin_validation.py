"""Live runs beside their twins, end to end on the bundled model: a twin that is told of another disk is found unfit."""

import polars as pl
import pytest

from workbench.analysis.twin_errors import decoded
from workbench.analysis.twin_trust import trust
from workbench.errors import BadInput
from workbench.experiments import twin_validation
from workbench.experiments.disk_probe import probe_envelope
from workbench.experiments.live_twin import twin_inputs
from workbench.experiments.trace import TraceConfig, record_trace
from workbench.experiments.twin_validation import TwinValidationConfig, validate_twin
from workbench.readers import Disk
from workbench.runtime.config import RuntimeConfig
from workbench.schema import Evidence, Outcome, list_runs, read_events
from workbench.schema.envelopes import load_envelope
from workbench.simulate.stages import StageTimes

SMALL = {"envelopes": ["usb-10gbps"], "slowed": [], "requests": 1, "tokens": 5, "attribution_tokens": 2, "prompt_tokens": 8}


def test_the_twin_decides_what_the_live_run_decided(mini_store, tmp_path):
    """Same routes, pages and cache: the same hits of records and pages, layer by layer; only times are the model's."""
    runtime = RuntimeConfig(cache_bytes=9_000_000, policy="lru", uncached=False, prefill="micro")
    recording = TraceConfig(requests=2, tokens=4, tile=1, prompt_tokens=12, runtime=runtime)
    live = record_trace(recording, root=tmp_path)
    inputs = twin_inputs(live, runtime, mini_store)
    twin = inputs.replay(StageTimes.uniform(8, 10.0), load_envelope("usb-10gbps"))
    columns = ["request", "phase", "position", "layer", "hits", "joined", "misses"]
    for store in ("expert", "ple"):
        counts = [
            events.filter(kind="demand", store=store).select(columns).sort(columns[:4])
            for events in (read_events(live.path / "events.parquet"), twin)
        ]
        assert counts[0].equals(counts[1]), store
    moved = [
        dict(events.filter(kind="ticket", store="expert").select("identity", "physical_bytes").iter_rows())
        for events in (read_events(live.path / "events.parquet"), twin)
    ]
    assert moved[0] == moved[1]


def test_what_the_twin_does_not_imitate_is_refused(mini_store, tmp_path):
    with pytest.raises(BadInput, match=r"runtime\.ple: the twin supports 'early' only"):
        twin_inputs(list(list_runs(tmp_path)), RuntimeConfig(ple="late"), mini_store)


def test_a_planted_disk_makes_the_twin_unfit_and_every_run_is_kept(mini_store, tmp_path, monkeypatch):
    told = load_envelope("usb-10gbps").model_copy(update={"latency_us": 20_000.0})
    monkeypatch.setattr(twin_validation, "load_envelope", lambda name: told)
    config = TwinValidationConfig.build({**SMALL, "cache_shares": [0.15, 0.3], "policies": ["lru"], "waves": ["barrier"]})
    folder = validate_twin(config, root=tmp_path)
    result = folder.result
    assert result.evidence is Evidence.SIMULATED
    assert result.verdict.outcome is Outcome.FAIL
    assert "twin.exposed_wait" in result.verdict.codes
    assert [row["quantity"] for row in result.tables["errors"]] == ["hits", "token_time", "exposed_wait"]
    assert [row["cache_share"] for row in result.tables["runs"]] == [0.15, 0.3]
    assert result.tables["errors"][0]["mean_absolute"] == 0, "decisions do not depend on the disk"
    assert pl.read_parquet(folder.artifacts / "runs.parquet").height == 2
    assert (folder.artifacts / "figures" / "errors.png").stat().st_size > 10_000
    kept = [run.path.parent.name for run in list_runs(folder.path / "runs")]
    assert sorted(kept) == ["stages"] * 2 + ["trace"] * 6
    assert {row["run"] for row in result.tables["runs"]} <= {run.path.name for run in list_runs(folder.path / "runs", "trace")}
    assert trust(tmp_path, "mini").statement.startswith("the twin is unfit")


def test_every_disk_has_every_share_and_a_slowed_one_takes_as_long_a_record_as_the_large_model(mini_store, tmp_path):
    config = TwinValidationConfig.build({**SMALL, "slowed": ["m5-pro-2tb"], "cache_shares": [0.15], "waves": ["barrier"]})
    folder = validate_twin(config, root=tmp_path)
    rows = folder.result.tables["runs"]
    assert [row["envelope"] for row in rows] == ["usb-10gbps", "m5-pro-2tb-slowed-100"]
    slow, fast = load_envelope("m5-pro-2tb-slowed-100"), load_envelope("m5-pro-2tb")
    assert Disk(slow).ready_ns(0, 27_648) == pytest.approx(Disk(fast).ready_ns(0, 2_764_800))
    assert rows[1]["live_exposed_wait_ms"] > rows[0]["live_exposed_wait_ms"]
    assert {row["live_evidence"] for row in rows} == {"emulated"}
    assert any(line.startswith("2 of 2 live runs are emulated") for line in folder.result.verdict.conditions)


def test_live_figures_in_the_table_are_those_of_the_runs(mini_store, tmp_path):
    config = TwinValidationConfig.build({**SMALL, "cache_shares": [0.2]})
    folder = validate_twin(config, root=tmp_path)
    [row] = folder.result.tables["runs"]
    live = decoded(read_events(folder.path / "runs" / "trace" / row["run"] / "events.parquet"))
    assert (row["live_hit_rate"], row["live_token_ms"]) == (live.hit_rate, live.token_ms)
    assert row["hits_error"] == 0
    assert folder.result.verdict.outcome is Outcome.INCONCLUSIVE


def test_an_unknown_disk_is_refused_before_a_folder_exists(mini_store, tmp_path):
    with pytest.raises(BadInput, match="no envelope 'floppy'"):
        validate_twin(TwinValidationConfig(envelopes=("floppy",)), root=tmp_path)
    assert not list(list_runs(tmp_path))


def test_a_probe_gives_four_numbers_that_make_sense(mini_store):
    envelope = probe_envelope(mini_store, RuntimeConfig(uncached=False), 0.02)
    assert 0 < envelope.latency_us < 100_000
    assert envelope.iops > 10
    assert envelope.bandwidth_gbps > 1e-4
    assert envelope.source.startswith("probe of ")


def test_no_setting_goes_with_one_share_or_disk_only():
    cases = list(TwinValidationConfig().cases(["", "usb-10gbps", "slow"]))
    assert len(cases) == 12
    for name in ("policy", "wave"):
        for along in ("cache_share", "envelope"):
            pairs = {(getattr(case, name), getattr(case, along)) for case in cases}
            assert len(pairs) > len({value for value, _ in pairs}) + 3, (name, along)
    assert len({case.family for case in cases}) == 6
