"""The registry of metrics: `group/name_unit`, each with one meaning. Metrics of reads exist as `expert_...` and `ple_...`."""

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
    "predicted_bytes": ("bytes", "bytes read because a predictor asked for them"),
    "wasted_bytes": ("bytes", "predicted bytes that were never used"),
    "logical_bytes": ("bytes", "bytes of the demanded records or rows, cached ones included"),
    "physical_bytes": ("bytes", "bytes moved by the reader, alignment included"),
    "read_ops": ("reads", "read calls issued"),
    "read_size_p50_bytes": ("bytes", "median size of a read call"),
    "queue_depth_mean": ("reads", "mean number of reads in flight, sampled at each submit"),
    "coalesced_runs": ("reads", "read calls that carried more than one ticket"),
    "bandwidth_gbps": ("GB/s", "physical bytes / time with at least one read in flight, decimal gigabytes"),
    "submit_to_ready_p50_us": ("us", "median time from submit to bytes ready"),
    "submit_to_ready_p95_us": ("us", "95th percentile of the time from submit to bytes ready"),
    "submit_to_ready_p99_us": ("us", "99th percentile of the time from submit to bytes ready"),
    "ready_to_seen_p50_us": ("us", "median time from bytes ready until the compute thread sees that"),
    "slack_p50_us": ("us", "median of (deadline - ready time); deadline: first actual or expected request; negative is late"),
    "late_fraction": ("fraction", "late demanded tickets / demanded tickets; late: not ready when compute first asked"),
    "useful_prefetch_ratio": ("fraction", "predicted tickets that were used / predicted tickets"),
    "overfetch_ratio": ("ratio", "(demand + wasted bytes) / demand bytes"),
    "checksum_ms": ("ms", "time spent on checksums of the bytes read"),
}

_CLASSES = ("P0 (exact)", "P1 (predicted within the layer)", "P2 (predicted further ahead)", "P3 (warming)")
_OF_A_CLASS = {
    # name: (unit, meaning); the class is the one that a read was planned in, which tells the requester
    "bytes": ("bytes", "logical bytes of reads planned in class {}"),
    "useful_ratio": ("fraction", "used bytes / bytes, of reads planned in class {}"),
    "late_fraction": ("fraction", "late demanded tickets / demanded tickets, of tickets planned in class {}"),
}
_CLASS_READS = {
    f"p{number}_{name}": (unit, meaning.format(words))
    for number, words in enumerate(_CLASSES)
    for name, (unit, meaning) in _OF_A_CLASS.items()
}

_PLE = {
    "rows_requested": ("rows", "n-gram rows needed, counted for each token"),
    "rows_unique": ("rows", "n-gram rows needed, counted once per block of tokens"),
    "pages_requested": ("pages", "pages of the needed n-gram rows, counted for each token"),
    "pages_unique": ("pages", "pages of the needed n-gram rows, counted once per demand"),
    "page_hits": ("pages", "pages found in the cache"),
    "pages_joined": ("pages", "pages whose read was already in flight"),
    "page_misses": ("pages", "pages that had to be read"),
    "logical_bytes": ("bytes", "bytes of the demanded rows, cached ones included"),
    "physical_bytes": ("bytes", "bytes of pages moved by the reader"),
    "ready_to_use_slack_p50_us": (
        "us",
        "median of (deadline - ready time) of used pages; deadline: when the PLE stage needs them",
    ),
    "exposed_wait_ms": ("ms", "time compute was blocked on n-gram rows"),
    "rejected_suffix_bytes": ("bytes", "bytes of pages needed by rejected tokens of verified blocks alone"),
    "rejected_pages_reused": ("pages", "pages of rejected tokens that a later token used"),
}

_ROUTING = {
    "prev_token_overlap": ("fraction", "share of a token's experts that the previous token used in the same layer"),
    "union_b2": ("experts", "distinct experts per layer in 2 consecutive tokens"),
    "union_b3": ("experts", "distinct experts per layer in 3 consecutive tokens"),
    "union_b4": ("experts", "distinct experts per layer in 4 consecutive tokens"),
    "union_b5": ("experts", "distinct experts per layer in 5 consecutive tokens"),
    "unique_per_layer": ("experts", "distinct experts per layer in a request, mean over layers"),
    "reuse_distance_p50": ("tokens", "median tokens between two uses of a record"),
    "recall_at_10": ("fraction", "share of the true experts among the first 10 predicted"),
    "precision": ("fraction", "share of issued predictions that were selected"),
    "timely_recall": ("fraction", "selected experts ready when compute first asked, cached ones included / selected experts"),
    "timely_coverage": ("fraction", "selected experts not cached but ready when compute first asked / those not cached"),
    "calibration_error": ("fraction", "expected calibration error of issued predictions"),
    "evictions_by_false_prediction": ("records", "records evicted for a prediction that was not used"),
    "decode_hit_rate": ("fraction", "selected experts found in the cache / selected experts, in passes that generate tokens"),
    "request_hit_rate": ("fraction", "selected experts found in the cache / selected experts, in prefill and decode"),
    "misses_per_token": ("records", "cache misses of passes that generate tokens, per committed token"),
}

_OVERLAP = {
    "stage_gdn_ms": ("ms", "compute per token of gated delta nets with their hyper-connection, from the attribution run"),
    "stage_qsa_ms": ("ms", "compute per token of indexed attention with its hyper-connection, from the attribution run"),
    "stage_router_ms": ("ms", "compute per token of routers with their hyper-connection, from the attribution run"),
    "stage_shared_ms": ("ms", "compute per token of shared experts, from the attribution run"),
    "stage_gate_up_ms": ("ms", "compute per token of routed gate and up, from the attribution run"),
    "stage_down_ms": ("ms", "compute per token of routed down and the rank-ordered sum, from the attribution run"),
    "stage_ple_ms": ("ms", "compute per token of PLE injection, from the attribution run"),
    "stage_head_ms": ("ms", "compute per token of the final mix and head, from the attribution run"),
    "attribution_ratio": ("ratio", "stage times of the attribution run / token time of the timed run without its exposed waits"),
    "readback_ms": ("ms", "time the host waited for router ids"),
    "host_ms": ("ms", "time of passes without the host's waits for reads, router ids and other compute"),
    "io_wall_ms": ("ms", "time with at least one demanded read between submit and ready"),
    "exposed_wait_ms": ("ms", "time compute was blocked on demanded expert bytes"),
    "hidden_fraction": ("fraction", "1 - exposed waits for experts and PLE / io wall; shown with demand and wasted bytes only"),
    "compute_idle_for_exact_io_ms": ("ms", "time compute was blocked on demanded expert and PLE bytes"),
    "wave_gate_up_ready_ms": ("ms", "mean time from a demand until a wave's gate+up extents were ready"),
    "wave_down_ready_ms": ("ms", "mean time from a demand until a wave's down extents were ready"),
    "compute_slowdown": ("ratio", "stage time with reads in flight / stage time without"),
}

_E2E = {
    "resident_check_ms": ("ms", "time to compare the digest of the resident weights; 0: unchanged since it was last compared"),
    "prefill_tps": ("tokens/s", "prompt tokens / prefill time"),
    "decode_tps": (
        "tokens/s",
        "tokens committed by a turn's passes after its first one / time from the end of the first to the end of the last",
    ),
    "ttft_ms": ("ms", "time to the first token: from the first request's start to the end of its prefill"),
    "tpot_p50_ms": ("ms", "median time per token; a pass that commits n tokens in d ms counts as n intervals of d / n"),
    "tpot_p95_ms": ("ms", "95th percentile of the time per token"),
    "tau": ("tokens", "tokens committed per verify pass, the verifier's own included"),
    "demand_bytes_per_token": ("bytes", "expert and PLE demand bytes of generating passes per committed token"),
    "wasted_bytes_per_token": ("bytes", "expert and PLE wasted bytes of generating passes per committed token"),
    "bound_tps": ("tokens/s", "upper bound: 1 / max(compute time per token, expert bytes per token / bandwidth)"),
    "dependency_bound_ms": ("ms", "least token time if reads overlap all that dependencies allow (workbench/bounds.py)"),
    "bound_fraction": ("fraction", "dependency bound / token time"),
    "peak_rss_bytes": ("bytes", "peak resident set size of the process, as the kernel reports it"),
    "working_set_bytes": ("bytes", "resident weights plus slots plus PLE pages in use"),
    "swap_delta_bytes": ("bytes", "bytes newly swapped out during the run"),
    "memory_pressure": ("fraction", "highest share of memory that was not available"),
    "nll_per_token": ("nats", "mean negative log likelihood per token"),
    "bits_per_byte": ("bits", "negative log likelihood in bits / bytes of the predicted tokens"),
}

_EFFECT = {
    "ratio": ("ratio", "metric of B / metric of A, geometric mean over valid cohorts"),
    "ratio_low": ("ratio", "lower end of the ratio's t-interval: 95 %, or 99.9 % of a series that stopped early"),
    "ratio_high": ("ratio", "upper end of the ratio's t-interval: 95 %, or 99.9 % of a series that stopped early"),
    "bytes_per_token_ratio": ("ratio", "demand plus wasted bytes per token, those of B / those of A, mean over valid cohorts"),
    "cohorts_valid": ("cohorts", "number of valid cohorts"),
    "cohorts_run": ("cohorts", "number of cohorts that were started, the invalid ones included"),
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
