"""The one registry of metrics: `group/name_unit`, one meaning each. Reads exist twice, `expert_...` and `ple_...`."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric: its full name, its unit, what it means, and whether it is logged per token as well."""

    name: str
    unit: str
    meaning: str
    per_token: bool = False


_READS = {
    # name: (unit, meaning); each exists once for experts and once for PLE
    "demand_bytes": ("bytes", "exact bytes plus predicted bytes that were used"),
    "exact_bytes": ("bytes", "bytes read because the native router or known tokens demanded them"),
    "predicted_bytes": ("bytes", "bytes read because something predicted them"),
    "wasted_bytes": ("bytes", "predicted bytes that were never used"),
    "logical_bytes": ("bytes", "bytes of the records or rows asked for"),
    "physical_bytes": ("bytes", "bytes the reader moved, alignment included"),
    "read_ops": ("reads", "read calls issued"),
    "read_size_p50_bytes": ("bytes", "median size of a read call"),
    "queue_depth_mean": ("reads", "mean number of reads in flight, seen at each submit"),
    "coalesced_runs": ("reads", "read calls that carried more than one ticket"),
    "bandwidth_gbps": ("GB/s", "physical bytes over the union of in-flight intervals, decimal gigabytes"),
    "submit_to_ready_p50_us": ("us", "median time from submit to bytes ready"),
    "submit_to_ready_p95_us": ("us", "95th percentile of the same"),
    "submit_to_ready_p99_us": ("us", "99th percentile of the same"),
    "ready_to_seen_p50_us": ("us", "median time from bytes ready to the compute thread seeing it"),
    "slack_p50_us": ("us", "median of the time of use, expected or actual, minus ready time; negative is late"),
    "late_fraction": ("fraction", "demanded tickets not ready when compute first asked"),
    "useful_prefetch_ratio": ("fraction", "predicted tickets that were used / predicted tickets"),
    "overfetch_ratio": ("ratio", "(demand + wasted bytes) / demand bytes"),
    "checksum_ms": ("ms", "time spent on checksums of what was read"),
}

_CLASSES = ("P0 (exact)", "P1 (predicted within the layer)", "P2 (predicted further ahead)", "P3 (warming)")
_OF_A_CLASS = {
    # name: (unit, meaning); the class is the one that a read was planned in, because that says who asked
    "bytes": ("bytes", "logical bytes of reads planned in class {}"),
    "useful_ratio": ("fraction", "share of the bytes of reads planned in class {} that was used"),
    "late_fraction": ("fraction", "demanded tickets planned in class {} that were not ready when compute first asked"),
}
_CLASS_READS = {
    f"p{number}_{name}": (unit, meaning.format(words))
    for number, words in enumerate(_CLASSES)
    for name, (unit, meaning) in _OF_A_CLASS.items()
}

_PLE = {
    "rows_requested": ("rows", "n-gram rows that tokens asked for"),
    "rows_unique": ("rows", "distinct rows among them"),
    "pages_requested": ("pages", "pages that hold them, counted token by token"),
    "pages_unique": ("pages", "distinct pages among them"),
    "page_hits": ("pages", "pages found in the cache"),
    "pages_joined": ("pages", "pages whose read was already in flight"),
    "page_misses": ("pages", "pages that had to be read"),
    "logical_bytes": ("bytes", "bytes of the rows asked for"),
    "physical_bytes": ("bytes", "bytes of pages the reader moved"),
    "ready_to_use_slack_p50_us": ("us", "median time between rows ready and the PLE stage asking for them"),
    "exposed_wait_ms": ("ms", "time compute stood still for n-gram rows"),
    "rejected_suffix_bytes": ("bytes", "page bytes read that only rejected tokens of verified blocks asked for"),
    "rejected_pages_reused": ("pages", "pages of rejected tokens that a later token used"),
}

_ROUTING = {
    "prev_token_overlap": ("fraction", "share of a token's experts that the previous token used in the same layer"),
    "union_b2": ("experts", "distinct experts a layer over 2 consecutive tokens"),
    "union_b3": ("experts", "the same over 3 tokens"),
    "union_b4": ("experts", "the same over 4 tokens"),
    "union_b5": ("experts", "the same over 5 tokens"),
    "unique_per_layer": ("experts", "distinct experts a layer over a request, mean over layers"),
    "reuse_distance_p50": ("tokens", "median tokens between two uses of a record"),
    "recall_at_10": ("fraction", "share of the true experts among the first 10 predicted"),
    "precision": ("fraction", "share of issued predictions that were selected"),
    "timely_recall": ("fraction", "exact selected experts that were ready / exact selected experts; residents count"),
    "timely_coverage": ("fraction", "the same over misses of the cache only"),
    "calibration_error": ("fraction", "expected calibration error of issued predictions"),
    "evictions_by_false_prediction": ("records", "records evicted for a prediction that was not used"),
    "decode_hit_rate": ("fraction", "selected experts found in the cache, passes that generate tokens only"),
    "request_hit_rate": ("fraction", "the same over prefill and decode"),
    "misses_per_token": ("records", "records read per generated token, by committed tokens"),
}

_OVERLAP = {
    "stage_gdn_ms": ("ms", "compute of gated delta nets with their hyper-connection, a token, from the attribution run"),
    "stage_qsa_ms": ("ms", "compute of indexed attention with its hyper-connection, a token, from the attribution run"),
    "stage_router_ms": ("ms", "compute of routers with their hyper-connection, a token, from the attribution run"),
    "stage_shared_ms": ("ms", "compute of shared experts, from the attribution run"),
    "stage_gate_up_ms": ("ms", "compute of routed gate and up, from the attribution run"),
    "stage_down_ms": ("ms", "compute of routed down and the rank-ordered sum, from the attribution run"),
    "stage_ple_ms": ("ms", "compute of PLE injection, from the attribution run"),
    "stage_head_ms": ("ms", "compute of the final mix and head, from the attribution run"),
    "attribution_ratio": ("ratio", "total of the attribution run / total of the timed run"),
    "readback_ms": ("ms", "time the host waited for router ids"),
    "host_ms": ("ms", "host time outside waiting and evaluation"),
    "io_wall_ms": ("ms", "union of submit-to-ready intervals of all demanded bytes"),
    "exposed_wait_ms": ("ms", "time compute stood still for demanded expert bytes"),
    "hidden_fraction": ("fraction", "1 - exposed wait / io wall; shown with demand and wasted bytes only"),
    "compute_idle_for_exact_io_ms": ("ms", "time no compute ran because exact bytes were missing"),
    "wave_gate_up_ready_ms": ("ms", "mean time from a demand until a wave's gate+up extents were ready"),
    "wave_down_ready_ms": ("ms", "the same of its down extents"),
    "compute_slowdown": ("ratio", "stage time with reads in flight / without"),
}

_E2E = {
    "resident_check_ms": ("ms", "time to compare the digest of the resident weights; 0: unchanged since it was last compared"),
    "prefill_tps": ("tokens/s", "prompt tokens over prefill time"),
    "decode_tps": (
        "tokens/s",
        "tokens that a turn's passes behind its first one commit / time from the end of the first to the end of the last",
    ),
    "ttft_ms": ("ms", "time to the first token"),
    "tpot_p50_ms": ("ms", "median time per token; a pass that commits n tokens in d ms counts as n intervals of d / n"),
    "tpot_p95_ms": ("ms", "95th percentile of the same"),
    "tau": ("tokens", "tokens committed per verify pass, the verifier's own included"),
    "demand_bytes_per_token": ("bytes", "expert and PLE demand bytes of generating passes per committed token"),
    "wasted_bytes_per_token": ("bytes", "expert and PLE wasted bytes of generating passes per committed token"),
    "bound_tps": ("tokens/s", "tokens/s at max(compute, bytes / bandwidth)"),
    "dependency_bound_ms": ("ms", "token time when reads overlap all that dependencies allow (DESIGN.md section 10)"),
    "bound_fraction": ("fraction", "dependency bound / token time"),
    "peak_rss_bytes": ("bytes", "the kernel's peak resident set"),
    "working_set_bytes": ("bytes", "resident weights plus slots plus PLE pages in use"),
    "swap_delta_bytes": ("bytes", "bytes newly swapped out during the run"),
    "memory_pressure": ("fraction", "share of memory not available, at its highest"),
    "nll_per_token": ("nats", "mean negative log likelihood"),
    "bits_per_byte": ("bits", "negative log likelihood in bits over the bytes of the predicted tokens"),
}

_EFFECT = {
    "ratio": ("ratio", "metric of B over A, geometric mean over valid cohorts"),
    "ratio_low": ("ratio", "lower end of its 95 % t-interval"),
    "ratio_high": ("ratio", "upper end of the same"),
    "bytes_per_token_ratio": ("ratio", "demand plus wasted bytes per committed token of B over A, mean over valid cohorts"),
    "cohorts_valid": ("cohorts", "cohorts that count"),
    "cohorts_run": ("cohorts", "cohorts that were completed, the invalid ones included"),
    "control_drift": ("fraction", "largest |A1 - A2| / mean of a valid cohort"),
    "candidate_spread": ("fraction", "largest |B1 - B2| / mean of a valid cohort"),
}

_PER_TOKEN = {
    "storage/expert_exact_bytes",
    "storage/ple_exact_bytes",
    "routing/misses_per_token",
    "overlap/exposed_wait_ms",
    "ple/exposed_wait_ms",
    "e2e/tpot_p50_ms",
}


def _registry() -> dict[str, Metric]:
    reads = _READS | _CLASS_READS
    groups = {
        "storage": {f"{owner}_{name}": value for owner in ("expert", "ple") for name, value in reads.items()},
        "ple": _PLE,
        "routing": _ROUTING,
        "overlap": _OVERLAP,
        "e2e": _E2E,
        "effect": _EFFECT,
    }
    names = ((f"{group}/{name}", unit, meaning) for group, members in groups.items() for name, (unit, meaning) in members.items())
    return {name: Metric(name=name, unit=unit, meaning=meaning, per_token=name in _PER_TOKEN) for name, unit, meaning in names}


METRICS: dict[str, Metric] = _registry()
"""Every metric by name. A result with a name that is not here is an error."""


def check_metric_names(names: Iterable[str]) -> None:
    """Raises ValueError naming the first metric that is not in the registry."""
    if unknown := sorted(set(names) - METRICS.keys()):
        raise ValueError(f"metric {unknown[0]!r} is not in the registry (workbench/schema/metrics.py)")
