"""Completes the configuration of a comparison of generate runs: settings left open are fixed once, before the first arm."""

from collections.abc import Mapping, Sequence
from typing import Any

from workbench.abba.cache_state import CacheState
from workbench.abba.records import AbbaConfig
from workbench.abba.statistics import Better
from workbench.config import overlay
from workbench.errors import BadInput, UnmetPrerequisite
from workbench.experiments.bandwidth import known_bandwidth
from workbench.experiments.generate import GenerateConfig
from workbench.paths import data_folder, store_folder
from workbench.prompts import load_prompts
from workbench.schema import METRICS
from workbench.stores.manifest import MANIFEST_NAME
from workbench.units import GB

_BETTER: dict[str, Better] = {
    "tokens/s": "higher",
    "GB/s": "higher",
    "tokens": "higher",
    "ms": "lower",
    "us": "lower",
    "bytes": "lower",
    "nats": "lower",
    "bits": "lower",
    "records": "lower",
}
_DEFAULT_TOKENS = 64
_STORE_FILES = ("*.em2", "*.ple")


def compare_generate(
    base: Mapping[str, Any], change: Sequence[str], values: Mapping[str, Any], settings: Sequence[str] = ()
) -> AbbaConfig:
    """The configuration of a comparison of two `generate` plans.

    Args:
        base: settings of a generate run; without turns it decodes a held-out prompt.
        change: `key=value` settings of arm B.
        values: settings of the comparison; None: the default.
        settings: `key=value` settings of the comparison, which override `values`.

    Raises BadInput on settings that can't be used, UnmetPrerequisite without the profile's store.
    """
    state = CacheState(values.get("cache_state") or CacheState.COLD_PROCESS)
    plan = _pinned(GenerateConfig.build(base), state)
    made = plan.model_dump(mode="json", exclude_none=True)
    other = GenerateConfig.build(made, change)
    if change and other == plan:
        raise BadInput(f"--change {' '.join(change)} changes nothing: the base has this setting already")
    if other.evidence is not plan.evidence:
        raise BadInput(
            f"--change {' '.join(change)} compares {plan.evidence} reads with {other.evidence} ones: give both an envelope"
        )
    metric = values.get("metric") or AbbaConfig.model_fields["metric"].default
    known = {
        "profile": plan.profile,
        "evidence": plan.evidence,
        "base": made,
        "change": list(change),
        "better": values.get("better") or better_way(metric),
        "cache_files": [str(path) for pattern in _STORE_FILES for path in sorted(store_folder(plan.profile).glob(pattern))],
    }
    return AbbaConfig.build(overlay(known, {name: value for name, value in values.items() if value is not None}), settings)


def better_way(metric: str) -> Better:
    """Which way a metric improves, by its unit. Raises BadInput on an unknown metric or a unit without a direction."""
    if metric not in METRICS:
        raise BadInput(f"no such metric: {metric!r} (names are in workbench/schema/metrics.py, e.g. e2e/decode_tps)")
    if METRICS[metric].unit not in _BETTER:
        raise BadInput(f"{metric} is a {METRICS[metric].unit}: say which way it improves, --better higher or --better lower")
    return _BETTER[METRICS[metric].unit]


def _pinned(config: GenerateConfig, state: CacheState) -> GenerateConfig:
    """The configuration with a prompt, no attribution run, a bandwidth measured once, and the warm-up for its cache state."""
    store = store_folder(config.profile)
    if not config.resident and not (store / MANIFEST_NAME).exists():
        raise UnmetPrerequisite(f"no store in {store}: make it with `workbench pack` or `workbench slice`")
    changes: dict[str, Any] = {"attribution_tokens": 0}
    if not config.turns:
        changes |= {"turns": (_prompt(),), "max_tokens": _DEFAULT_TOKENS, "stop_at_eos": False}
    if config.bandwidth_gbps is None and not config.resident:
        # a probe in every arm would fill the page cache that the arms declare
        probed = known_bandwidth(None, config.profile, config.runtime, config.probe_s)
        changes["bandwidth_gbps"] = float(f"{probed.bytes_per_s / GB:.4g}")
    if state is CacheState.HOT_CACHE and not config.warm_up_tokens:
        changes["warm_up_tokens"] = changes.get("max_tokens", config.max_tokens)
    return config.model_copy(update=changes)


def _prompt() -> str:
    return load_prompts(data_folder() / "prompts", split="held_out")[0].text
