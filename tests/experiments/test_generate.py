import json
import os
import subprocess
import sys

import psutil
import pytest

from workbench.analysis.run_metrics import run_metrics
from workbench.errors import BadInput, UnmetPrerequisite
from workbench.experiments.generate import GenerateConfig, run_generate
from workbench.paths import bundled_model
from workbench.schema import Evidence, Status, read_events
from workbench.stores.build import BuildSettings
from workbench.stores.pack import pack
from workbench.units import MIB

PROMPT = "def main(arguments):\n    "


def config(**values):
    return GenerateConfig.build({"turns": [PROMPT], "max_tokens": 6, "bandwidth_gbps": 1.0, "attribution_tokens": 2} | values)


def test_a_run_leaves_its_text_figures_and_digests(mini_store, tmp_path):
    pieces = []
    made = run_generate(config(), on_text=pieces.append, root=tmp_path)
    result = made.folder.result
    assert "".join(pieces) == made.texts[0]
    assert result.status is Status.FINISHED
    assert result.tags["bandwidth_source"] == "given: 1 GB/s"
    assert {"state_digest", "routing_digest", "store_digest", "cache_slots"} <= result.tags.keys()
    assert {"e2e/decode_tps", "e2e/bound_tps", "e2e/bound_fraction", "overlap/stage_gdn_ms"} <= result.metrics.keys()
    assert 0 < result.metrics["e2e/bound_fraction"] <= 1.05
    assert len(result.per_token["e2e/tpot_p50_ms"]) == 5


def test_figures_can_be_computed_again_from_the_raw_events(mini_store, tmp_path):
    folder = run_generate(config(), root=tmp_path).folder
    again = run_metrics(read_events(folder.path / "events.parquet"))
    assert {name: folder.result.metrics[name] for name in again} == again


def test_streamed_and_resident_runs_agree(mini_store, tmp_path):
    streamed = run_generate(config(), root=tmp_path)
    resident = run_generate(config(resident=True), root=tmp_path)
    assert streamed.texts == resident.texts
    for tag in ("state_digest", "routing_digest"):
        assert streamed.folder.result.tags[tag] == resident.folder.result.tags[tag]


def test_turns_keep_state_and_cache(mini_store, tmp_path):
    turns = config(turns=["import os\n", "def f("], stop_at_eos=False)
    both = run_generate(turns, root=tmp_path)
    alone = run_generate(config(turns=["def f("], stop_at_eos=False), root=tmp_path)
    assert len(both.texts) == 2
    assert both.texts[1] != alone.texts[0], "the second turn must go on from the first"
    positions = read_events(both.folder.path / "events.parquet").filter(kind="token")["position"].to_list()
    assert positions == sorted(positions)


def test_a_warm_up_leaves_no_events_and_the_same_text(mini_store, tmp_path):
    cold, warm = (run_generate(config(warm_up_tokens=n), root=tmp_path) for n in (0, 6))
    assert cold.texts == warm.texts
    events = read_events(warm.folder.path / "events.parquet")
    assert events.filter(kind="mark", name="request_start").height == 1
    assert warm.folder.result.metrics["routing/decode_hit_rate"] == 1.0
    assert cold.folder.result.metrics["routing/decode_hit_rate"] < 1.0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"turns": []}, "give a prompt"),
        ({"turns": [""]}, "give a prompt"),
        ({"profile": "maxi"}, "profile: Input should be 'mini', 'slice' or 'flash-next'"),
    ],
)
def test_settings_that_can_not_be_used_are_refused(mini_store, tmp_path, values, message):
    with pytest.raises(BadInput, match=message):
        run_generate(config(**values), root=tmp_path)


def test_any_profile_runs_resident_if_it_fits(mini_store, tmp_path, monkeypatch):
    # the store is small, whatever its profile is called
    resident, streamed = (
        run_generate(config(profile="flash-next", resident=resident), root=tmp_path).folder.result for resident in (True, False)
    )
    for name in ("output_digest", "state_digest", "routing_digest", "checkpoint_sha256"):
        assert resident.tags[name] == streamed.tags[name]
    memory = psutil.virtual_memory()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory._replace(available=1 << 20))
    for profile in ("mini", "flash-next"):
        with pytest.raises(UnmetPrerequisite, match=r"takes up to \d.* of memory, 1 MiB are available"):
            run_generate(config(profile=profile, resident=True), root=tmp_path)


def test_a_store_that_can_not_be_run_is_refused(tmp_path, monkeypatch):
    pack(bundled_model(), tmp_path / "interleaved", settings=BuildSettings(storage_format=1))
    monkeypatch.setenv("WORKBENCH_STORE", str(tmp_path / "interleaved"))
    for values in ({}, {"profile": "flash-next", "resident": True}):
        with pytest.raises(BadInput, match=r"format 1, which can be verified and exchanged but not run: .* --format 2"):
            run_generate(config(**values), root=tmp_path)


def test_peak_memory_keeps_to_the_budget(mini_store, tmp_path):
    """The kernel's figure of a process of its own: trunk in float32, the cache, and 600 MiB for everything else."""
    command = [
        sys.executable,
        "-m",
        "workbench.cli",
        "generate",
        "--prompt",
        PROMPT,
        "--max-tokens",
        "4",
        "--bandwidth-gbps",
        "1",
    ]
    command += ["--cache-bytes", "6MiB", "--out", str(tmp_path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=True)
    result = json.loads(done.stdout)
    metrics = result["metrics"]
    assert metrics["e2e/peak_rss_bytes"] <= metrics["e2e/working_set_bytes"] + 600 * MIB
    assert metrics["e2e/working_set_bytes"] <= 34 * MIB, "27.5 MB of trunk in float32 and at most 6 MiB of cache"


def test_a_run_that_is_slowed_to_another_disk_is_emulated(mini_store, tmp_path):
    runtime = {"envelope": "m4-pro-512gb", "cache_bytes": 6 * MIB}
    result = run_generate(config(runtime=runtime, bandwidth_gbps=None), root=tmp_path).folder.result
    assert result.evidence is Evidence.EMULATED
    assert result.tags["bandwidth_source"].startswith("envelope m4-pro-512gb (emulated)")
    assert 0 <= float(result.tags["overdue_share"]) <= 1


def test_idle_time_between_turns_brings_a_hot_set_back_and_changes_no_text(mini_store, tmp_path):
    turns = {"turns": ["import os\n", "def f(x):"], "stop_at_eos": False, "runtime": {"cache_bytes": 5_000_000, "policy": "lru"}}
    plain = run_generate(config(**turns), root=tmp_path)
    warmed = run_generate(config(**turns, idle_s=0.5, hot_set=40), root=tmp_path)
    assert warmed.texts == plain.texts
    assert warmed.folder.result.tags["state_digest"] == plain.folder.result.tags["state_digest"]
    events = [read_events(made.folder.path / "events.parquet").filter(kind="ticket") for made in (plain, warmed)]
    assert [tickets.filter(intent="predicted").height for tickets in events] == [0, 40]
    starts = read_events(warmed.folder.path / "events.parquet").filter(name="request_start")["t_ns"]
    assert starts[1] - starts[0] > 500 * 1_000_000
