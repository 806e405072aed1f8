"""What Gate C compares, and the plans of its arms: one setting differs, everything else is the runtime's default."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.abba.plans import compare_generate
from workbench.abba.records import AbbaConfig
from workbench.errors import BadInput
from workbench.gates.c_overlap.config import OverlapConfig
from workbench.gates.traces import profile_geometry
from workbench.paths import store_folder
from workbench.runtime.pool import float32_scales_bytes
from workbench.runtime.store_cache import cache_limits
from workbench.stores import open_store

WAVES, EARLY, LANES, SPLIT = "waves", "early pages", "page lanes", "split records"
_WIDTHS: tuple[int | str, ...] = (1, 2, 4, "all")


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A setting's control (arm A) against its candidate (arm B)."""

    name: str
    setting: str
    """Of `RuntimeConfig`."""
    control: Any
    candidate: Any
    decides: bool
    """A clause turns on it; else it is only shown."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One comparison on one disk."""

    disk: str
    """Name of an envelope; empty: this disk at its own speed."""
    comparison: Comparison

    @property
    def words(self) -> str:
        """For people."""
        return f"{self.comparison.name} on {disk_words(self.disk)}"


def disk_words(disk: str) -> str:
    """A disk's name for people."""
    return Path(disk).name.removesuffix(".json") or "this disk"


def comparisons(config: OverlapConfig) -> list[Comparison]:
    """Those that decide, then those that are only shown. Raises BadInput on a name in `compare` that is none."""
    every = [*_deciding(config), *_shown(config)]
    names = [each.name for each in every]
    if unknown := [name for name in config.compare if name not in names]:
        raise BadInput(f"compare: no comparison {unknown[0]!r} (there are {', '.join(names)})")
    return [each for each in every if not config.compare or each.name in config.compare]


def _deciding(config: OverlapConfig) -> list[Comparison]:
    return [
        _of(WAVES, "wave", "barrier", config.wave),
        _of(EARLY, "ple", "late", "early"),
        _of(LANES, "queue", "fifo", "lanes"),
        _of(SPLIT, "split_components", False, True),
    ]


def _shown(config: OverlapConfig) -> list[Comparison]:
    if not config.shown_cohorts:
        return []
    widths = [_of(f"waves of {width}", "wave", "barrier", width, decides=False) for width in _WIDTHS if width != config.wave]
    readback = _of("misses read back", "readback", "ids", "misses", decides=False)
    return [
        *widths,
        *([readback] if resolves_hits(config) else []),
        _of("next layer", "predictor", "nothing", "next_layer", decides=False),
    ]


def resolves_hits(config: OverlapConfig) -> bool:
    """Whether hits can be resolved on the device: records small enough that one gather runs all of the pool."""
    return float32_scales_bytes(profile_geometry(config.profile)) > 0


def _of(name: str, setting: str, control: Any, candidate: Any, *, decides: bool = True) -> Comparison:
    return Comparison(name=name, setting=setting, control=control, candidate=candidate, decides=decides)


def jobs(config: OverlapConfig) -> list[Job]:
    """Everything to run: first what decides, on every disk; what is only shown on the first disk alone."""
    compared = comparisons(config)
    shown = [Job(disk=config.disks[0], comparison=each) for each in compared if not each.decides]
    return [Job(disk=disk, comparison=each) for disk in config.disks for each in compared if each.decides] + shown


def base_plan(config: OverlapConfig, disk: str) -> dict[str, Any]:
    """A generate run with the runtime's defaults, except for a small cache and the wave width that decides."""
    least, _ = cache_limits(open_store(store_folder(config.profile)))
    return {
        "profile": config.profile,
        "turns": [config.prompt],
        "max_tokens": config.tokens,
        "stop_at_eos": False,
        "warm_up_tokens": config.warm_up_tokens,
        "runtime": {
            "cache_bytes": int(least.num_bytes * config.cache_over_least),
            "wave": config.wave,
            "envelope": disk,
            # an emulated disk's bytes come from the page cache: this machine's own disk may be slower than it
            "uncached": not disk,
        },
        # greedy text of a small model loops, and its routes repeat
        "sampling": {"temperature": 0.8, "top_p": 0.95, "seed": config.seed},
    }


def abba_config(config: OverlapConfig, job: Job) -> AbbaConfig:
    """The comparison of a job: separate processes, tokens/s; its arms warm up in their own process."""
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
    """As a setting on the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)
