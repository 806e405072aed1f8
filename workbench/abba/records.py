"""What is kept of a series: its configuration, and a record of every cohort and arm, the invalid ones included."""

from enum import StrEnum
from typing import Any, Literal

from pydantic import Field, field_validator

from workbench.abba.cache_state import CacheState
from workbench.abba.power import PowerState
from workbench.config import Config
from workbench.plugins import pinned
from workbench.schema import Evidence

ArmName = Literal["1A", "2B", "3B", "4A"]
ORDER: tuple[ArmName, ...] = ("1A", "2B", "3B", "4A")
"""Positions of a cohort: position before arm, so that any sort gives the run order."""

_HOW_LONG = ("cohorts", "max_cohorts", "warmups", "arm_timeout_s")
ARM_COMMAND = ("{python}", "-m", "workbench.cli", "generate", "--config", "{plan}", "--json")


class AbbaConfig(Config):
    """A comparison, complete and on disk before its first arm."""

    profile: str = "mini"
    """mini, slice or flash-next."""
    evidence: Evidence = Evidence.PHYSICAL
    """What the arms' numbers rest on; an arm that says otherwise is invalid."""
    base: dict[str, Any]
    """The plan of arm A: the configuration that its command gets."""
    change: tuple[str, ...] = ()
    """`key=value` settings that make arm B of it; none: A against A."""
    command: tuple[str, ...] = ARM_COMMAND
    """Command of an arm; `{python}` and `{plan}` (a TOML file) are filled in. It must write one result folder."""
    metric: str = "e2e/decode_tps"
    """Registry name of what is compared."""
    better: Literal["higher", "lower"] = "higher"
    """Which way the metric improves."""
    cohorts: int = Field(default=6, ge=1, le=50)
    """Valid cohorts that end the series; fewer than 4 are indicative; 6 find a 10 % slowdown at 5 % noise in 97 series of 100."""
    max_cohorts: int | None = Field(default=None, ge=1, le=500)
    """Cohorts tried at most, the rejected ones counted; absent: six times `cohorts` (at 5 % noise two of three are rejected)."""
    drift_limit: float = Field(default=0.03, gt=0, lt=1)
    """Largest accepted |A1 - A2| / mean, a fraction."""
    minimum_effect: float = Field(default=0.02, ge=0, lt=1)
    """Smallest gain worth having, a fraction."""
    cache_state: CacheState = CacheState.COLD_PROCESS
    """Declared state of the caches at the start of a timed arm."""
    cache_files: tuple[str, ...] = ()
    """Store files whose pages are checked by `mincore`."""
    warmups: int = Field(default=1, ge=0, le=5)
    """Runs discarded before each arm."""
    competitor_limit_cores: float = Field(default=0.25, gt=0)
    """Processor time of everything else, in cores on average over an arm, above which the cohort is invalid."""
    arm_timeout_s: float = Field(default=900.0, gt=0)
    """An arm that takes longer is killed."""
    digests: tuple[str, ...] = ("output_digest", "state_digest", "routing_digest")
    """Tags of an arm's result that must be there and equal in all four arms."""

    @field_validator("change")
    @classmethod
    def _pin_files(cls, change: tuple[str, ...]) -> tuple[str, ...]:
        """A class from a file is compared as the file is now: its digest is part of the question."""
        parts = [setting.partition("=") for setting in change]
        return tuple(f"{key}{equals}{pinned(value)}" for key, equals, value in parts)

    @property
    def most_cohorts(self) -> int:
        """Cohorts tried at most."""
        return self.max_cohorts or 6 * self.cohorts

    @property
    def is_null(self) -> bool:
        """A against A."""
        return not self.change

    @property
    def question(self) -> str:
        """SHA-256 of what is asked: a later series with the same plans, metric and cache state supersedes an earlier one."""
        return self.model_copy(update=dict.fromkeys(_HOW_LONG, 1)).digest


class Code(StrEnum):
    """Why a cohort does not count."""

    CONTROL_DRIFT = "control_drift"
    OUTPUT_DIFFERS = "output_differs"
    STATE_DIFFERS = "state_differs"
    ROUTING_DIFFERS = "routing_differs"
    DIGEST_MISSING = "digest_missing"
    PLAN_DIFFERS = "plan_differs"
    SOURCE_DIFFERS = "source_differs"
    ARM_FAILED = "arm_failed"
    ARM_KILLED = "arm_killed"
    ARM_TIMED_OUT = "arm_timed_out"
    METRIC_MISSING = "metric_missing"
    SWAPPED_OUT = "swapped_out"
    CACHE_STATE = "cache_state"
    COMPETITOR = "competitor"
    POWER_CHANGED = "power_changed"
    THERMAL_CHANGED = "thermal_changed"
    WATCH_BLIND = "watch_blind"
    INTERRUPTED = "interrupted"


class Reason(Config):
    """One reason, with the arm that gave it."""

    code: Code
    """What kind."""
    where: str
    """Arm, e.g. `2B`, or `cohort`."""
    detail: str
    """In words, with figures."""

    def __str__(self) -> str:
        return f"{self.code.value} ({self.where}: {self.detail})"


class WatchRecord(Config):
    """What the watchdog saw while an arm ran."""

    wall_s: float
    """Seconds watched."""
    num_samples: int
    """Readings taken."""
    longest_gap_s: float
    """Longest time between two of them."""
    swap_out_bytes: int
    """Bytes newly swapped out."""
    memory_pressure: float
    """Highest share of memory not available."""
    other_cores: float
    """Processor time of everything but the arm and the watchdog, in cores on average."""
    stolen_cores: float
    """Processor time that a hypervisor gave to others, in cores on average."""
    busiest: str = ""
    """The busiest other process: name, id, cores."""
    power_before: PowerState = PowerState()
    """Reading before the arm."""
    power_after: PowerState = PowerState()
    """Reading after it."""


class ArmRecord(Config):
    """One arm as it ran."""

    name: ArmName
    """Position and letter."""
    folder: str = ""
    """Its result folder, relative to the comparison's; empty when it left none."""
    exit_code: int
    """Of its command; negative: minus the signal that ended it."""
    timed_out: bool = False
    """It was killed for taking too long."""
    error: str = ""
    """Why it failed, one line."""
    started_ns: int
    """Monotonic time."""
    duration_s: float
    """Seconds from start to exit, start-up included."""
    value: float | None = None
    """The compared metric."""
    bytes_per_token: float | None = None
    """Demand and wasted bytes per committed token."""
    config_digest: str = ""
    """Of the arm's own configuration."""
    plan_mismatch: str = ""
    """First planned setting that the arm did not run with."""
    working_set_bytes: int | None = None
    """Resident weights, slots and pages: a cache budget that resolved differently shows here."""
    evidence: str = ""
    """physical, emulated, simulated or trace."""
    digests: dict[str, str] = Field(default_factory=dict)
    """Output, state and routing."""
    identity: dict[str, str] = Field(default_factory=dict)
    """Sources, versions, machine, stores: equal in all arms."""
    cached_fraction: float | None = None
    """Share of the store in the page cache just before it started."""
    watch: WatchRecord
    """What else happened meanwhile."""

    @property
    def letter(self) -> str:
        """`A` or `B`."""
        return self.name[-1]


class CohortRecord(Config):
    """One cohort: its arms in run order and why it does not count, if so."""

    number: int
    """From 1, in the order they were run."""
    arms: tuple[ArmRecord, ...]
    """As far as it came."""
    reasons: tuple[Reason, ...] = ()
    """Empty for a valid cohort."""

    @property
    def valid(self) -> bool:
        """It counts."""
        return not self.reasons


class Series(Config):
    """Content of `artifacts/cohorts.json`: written anew after every cohort."""

    cohorts: tuple[CohortRecord, ...] = ()
    """All that were started."""
