"""Comparisons of decode runs and the configurations of their arms: they differ in one setting of the gate's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.abba.plans import compare_generate
from workbench.abba.records import AbbaConfig
from workbench.errors import BadInput
from workbench.gates.shared.config import ComparisonConfig, disk_words
from workbench.gates.stage import file_digest
from workbench.gates.traces import ensure_store
from workbench.paths import store_folder
from workbench.runtime.store_cache import cache_limits
from workbench.schema.envelopes import load_envelope
from workbench.stores import open_store
from workbench.stores.manifest import MANIFEST_NAME


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A setting's control (arm A) against its candidate (arm B)."""

    name: str
    setting: str
    """A field of `RuntimeConfig`."""
    control: Any
    candidate: Any
    decides: bool = True
    """Whether a clause depends on the comparison; if not, the comparison is only shown."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One comparison on one disk."""

    disk: str
    """Name of an envelope; empty: this disk at its own speed."""
    comparison: Comparison

    @property
    def words(self) -> str:
        """Name of the job for people."""
        return f"{self.comparison.name} on {disk_words(self.disk)}"


def jobs(config: ComparisonConfig, every: Sequence[Comparison]) -> list[Job]:
    """Jobs of the comparisons that the settings name: deciding comparisons on every disk, then shown ones on the first disk.

    Raises BadInput on a name in `compare` that is not among the comparisons.
    """
    compared = _chosen(config, every)
    shown = [Job(disk=config.disks[0], comparison=each) for each in compared if not each.decides]
    return [Job(disk=disk, comparison=each) for disk in config.disks for each in compared if each.decides] + shown


def _chosen(config: ComparisonConfig, every: Sequence[Comparison]) -> list[Comparison]:
    known = [each for each in every if each.decides or config.shown_cohorts]
    names = [each.name for each in known]
    if unknown := [name for name in config.compare if name not in names]:
        raise BadInput(f"compare: no comparison {unknown[0]!r} (there are {', '.join(names)})")
    return [each for each in known if not config.compare or each.name in config.compare]


def base_plan(config: ComparisonConfig, disk: str) -> dict[str, Any]:
    """Settings of a `generate` run on a disk: the runtime's defaults, except for a small cache and the gate's own settings."""
    least, _ = cache_limits(open_store(store_folder(config.profile)))
    return {
        "profile": config.profile,
        "turns": [config.prompt],
        "max_tokens": config.tokens,
        "stop_at_eos": False,
        "warm_up_tokens": config.warm_up_tokens,
        "runtime": {
            "cache_bytes": int(least.num_bytes * config.cache_over_least),
            **config.runtime,
            "envelope": disk,
            # an emulated disk's bytes are read from the page cache: this machine's own disk may be the slower one
            "uncached": not disk,
        },
        # greedy text of a small model loops, and its routes repeat
        "sampling": {"temperature": 0.8, "top_p": 0.95, "seed": config.seed},
    }


def abba_config(config: ComparisonConfig, job: Job) -> AbbaConfig:
    """Configuration of a job's series: separate processes, compared by tokens/s; each arm warms up in its own process."""
    compared = job.comparison
    plan = base_plan(config, job.disk)
    plan["runtime"] |= {compared.setting: compared.control}
    cohorts = config.cohorts if compared.decides else config.shown_cohorts
    values = {
        "cohorts": cohorts,
        "max_cohorts": max(cohorts, config.max_cohorts if compared.decides else 1),
        "cache_state": "warm_store" if job.disk else "cold_store",
        "warmups": 0,
    }
    return compare_generate(plan, [f"runtime.{compared.setting}={_text(compared.candidate)}"], values)


def _text(value: Any) -> str:
    """A value as text for `--set` on the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def prepare_store(config: ComparisonConfig) -> None:
    """Packs the bundled model where its store is missing. Raises UnmetPrerequisite for another profile without a store."""
    ensure_store(config.profile)


def comparison_inputs(config: ComparisonConfig, other_stores: Mapping[str, str] | None = None) -> Mapping[str, str]:
    """Digests by name of a gate's inputs: its store's manifest, the envelopes of its disks.

    Args:
        config: the gate's settings.
        other_stores: profiles whose stores the gate reads too, by the name of the input.
    """
    stores = {"store": config.profile, **(other_stores or {})}
    manifests = {name: store_folder(profile) / MANIFEST_NAME for name, profile in stores.items()}
    disks = {f"envelope {disk}": load_envelope(disk).digest for disk in config.disks if disk}
    return {name: file_digest(path) if path.exists() else "missing" for name, path in manifests.items()} | disks
