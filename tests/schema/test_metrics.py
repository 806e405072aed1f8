import re

import pytest

from workbench.schema import METRICS, check_metric_names

REQUIRED = {
    "storage": """demand_bytes exact_bytes predicted_bytes wasted_bytes logical_bytes physical_bytes read_ops read_size_p50_bytes
        queue_depth_mean coalesced_runs bandwidth_gbps submit_to_ready_p50_us submit_to_ready_p95_us submit_to_ready_p99_us
        ready_to_seen_p50_us slack_p50_us late_fraction useful_prefetch_ratio overfetch_ratio
        p0_bytes p1_bytes p2_bytes p3_bytes p0_useful_ratio p1_useful_ratio p2_useful_ratio p3_useful_ratio
        p0_late_fraction p1_late_fraction p2_late_fraction p3_late_fraction""",
    "ple": """rows_requested rows_unique pages_requested pages_unique page_hits pages_joined page_misses
        ready_to_use_slack_p50_us exposed_wait_ms rejected_suffix_bytes rejected_pages_reused""",
    "routing": """prev_token_overlap union_b2 union_b3 union_b4 union_b5 unique_per_layer recall_at_10 precision timely_recall
        timely_coverage calibration_error evictions_by_false_prediction""",
    "overlap": """stage_gdn_ms stage_qsa_ms stage_router_ms stage_shared_ms stage_gate_up_ms stage_down_ms stage_ple_ms
        readback_ms host_ms io_wall_ms exposed_wait_ms hidden_fraction compute_idle_for_exact_io_ms wave_gate_up_ready_ms
        wave_down_ready_ms compute_slowdown""",
    "e2e": """prefill_tps decode_tps ttft_ms tpot_p50_ms tpot_p95_ms tau demand_bytes_per_token bound_fraction peak_rss_bytes
        working_set_bytes swap_delta_bytes memory_pressure""",
}


def required_names():
    for group, names in REQUIRED.items():
        for name in names.split():
            yield from (f"{group}/{owner}_{name}" for owner in ("expert", "ple")) if group == "storage" else [f"{group}/{name}"]


def test_every_required_metric_is_registered():
    assert set(required_names()) <= METRICS.keys()


def test_reads_exist_for_experts_and_for_ngram_rows_and_never_as_a_sum():
    storage = {name.removeprefix("storage/") for name in METRICS if name.startswith("storage/")}
    assert {name for name in storage if not name.startswith(("expert_", "ple_"))} == set()
    assert {n.removeprefix("expert_") for n in storage if n.startswith("expert_")} == {
        n.removeprefix("ple_") for n in storage if n.startswith("ple_")
    }


def test_names_units_and_meanings_fit_each_other():
    for name, metric in METRICS.items():
        assert metric.name == name
        assert re.fullmatch(r"[a-z0-9]+/[a-z0-9_]+", name)
        assert metric.meaning
        assert metric.unit
        for suffix, unit in (("_bytes", "bytes"), ("_ms", "ms"), ("_us", "us"), ("_gbps", "GB/s"), ("_tps", "tokens/s")):
            assert not name.endswith(suffix) or metric.unit == unit, name


def test_meanings_are_one_each_within_a_group():
    same = [m.meaning for m in METRICS.values() if not m.name.startswith("storage/ple_")]
    repeated = {meaning for meaning in same if same.count(meaning) > 1}
    assert repeated <= {"95th percentile of the same"}


def test_unknown_names_are_refused():
    check_metric_names(["e2e/decode_tps"])
    with pytest.raises(ValueError, match="'e2e/decode_speed' is not in the registry"):
        check_metric_names(["e2e/decode_tps", "e2e/decode_speed"])
