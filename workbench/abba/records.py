"""Records of a series: its configuration, and every cohort and arm, the invalid ones included."""

from enum import StrEnum
from typing import Any, Literal

from pydantic import ConfigDict, Field, field_validator

from workbench.abba.cache_state import CacheState
from workbench.abba.power import PowerState
from workbench.config import Config
from workbench.paths import Profile
from workbench.plugins import pinned
from workbench.schema import Evidence

ArmName = Literal["1A", "2B", "3B", "4A"]
ORDER: tuple[ArmName, ...] = ("1A", "2B", "3B", "4A")
"""Positions of a cohort: position before arm, so that any sort gives the run order."""

_HOW_LONG = ("cohorts", "max_cohorts", "warmups", "arm_timeout_s")
ARM_COMMAND = ("{python}", "-m", "workbench.cli", "generate", "--config", "{plan}", "--json")


class AbbaConfig(Config):
    """Configuration of a comparison, written to disk before its first arm."""

    profile: Profile = "mini"
    """mini, slice or flash-next."""
    evidence: Evidence = Evidence.PHYSICAL
    """How the arms' numbers are obtained; an arm with other evidence makes its cohort invalid."""
    base: dict[str, Any]
    """The plan of arm A: the configuration that its command gets."""
    change: tuple[str, ...] = ()
    """`key=value` settings in which arm B differs from arm A; none: A against A."""
    command: tuple[str, ...] = ARM_COMMAND
    """Command of an arm; `{python}` and `{plan}` (a TOML file) are filled in. It must write one result folder."""
    metric: str = "e2e/decode_tps"
    """Name of the compared metric in the registry."""
    better: Literal["higher", "lower"] = "higher"
    """Which way the metric improves."""
    cohorts: int = Field(default=6, ge=1, le=50)
    """Valid cohorts that end the series; fewer than 4 are indicative; 6 find a 10 % slowdown at 5 % noise in 97 series of 100."""
    max_cohorts: int | None = Field(default=None, ge=1, le=500)
    """Most cohorts run, the invalid ones included; absent: six times `cohorts` (at 5 % noise two of three are invalid)."""
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
    """CPU time of all other processes, in cores on average during an arm, above which the cohort is invalid."""
    arm_timeout_s: float = Field(default=900.0, gt=0)
    """An arm that takes longer is killed."""
    digests: tuple[str, ...] = ("output_digest", "state_digest", "routing_digest")
    """Tags of an arm's result that must be present and equal in all four arms."""

    @field_validator("change")
    @classmethod
    def _pin_files(cls, change: tuple[str, ...]) -> tuple[str, ...]:
        """Adds the file's digest to each setting that names a class in a file."""
        parts = [setting.partition("=") for setting in change]
        return tuple(f"{key}{equals}{pinned(value)}" for key, equals, value in parts)

    @property
    def most_cohorts(self) -> int:
        """Most cohorts run, the invalid ones included."""
        return self.max_cohorts or 6 * self.cohorts

    @property
    def is_null(self) -> bool:
        """True for A against A."""
        return not self.change

    @property
    def question(self) -> str:
        """SHA-256 of the configuration without its numbers of runs and time limit; a later series supersedes one of the same."""
        return self.model_copy(update=dict.fromkeys(_HOW_LONG, 1)).digest


class Code(StrEnum):
    """Kinds of reasons why a cohort is invalid."""

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
    """One reason why a cohort is invalid."""

    code: Code
    """Kind of the reason."""
    where: str
    """Arm, e.g. `2B`, or `cohort`."""
    detail: str
    """The reason in words, with figures."""

    def __str__(self) -> str:
        return f"{self.code.value} ({self.where}: {self.detail})"


class WatchRecord(Config):
    """Summary of the watchdog's readings during an arm."""

    model_config = ConfigDict(allow_inf_nan=True)

    wall_s: float
    """Seconds watched."""
    num_samples: int
    """Readings taken."""
    longest_gap_s: float
    """Longest time between two readings."""
    swap_out_bytes: int
    """Bytes newly swapped out."""
    memory_pressure: float
    """Highest share of memory that was not available."""
    other_cores: float
    """CPU time of all processes but the arm and the watchdog, in cores on average."""
    stolen_cores: float
    """CPU time that the hypervisor gave to other guests, in cores on average."""
    busiest: str = ""
    """The busiest other process: name, id, cores."""
    power_before: PowerState = PowerState()
    """Reading before the arm."""
    power_after: PowerState = PowerState()
    """Reading after the arm."""


class ArmRecord(Config):
    """Record of one arm's run."""

    model_config = ConfigDict(allow_inf_nan=True)

    name: ArmName
    """Position and letter."""
    folder: str = ""
    """The arm's result folder, relative to the comparison's folder; empty: none was written."""
    exit_code: int
    """Exit status of the arm's command; negative: minus the signal that ended the command."""
    timed_out: bool = False
    """True when the arm was killed on its time limit."""
    error: str = ""
    """Why the arm failed, one line; empty: it did not."""
    started_ns: int
    """Start of the arm, monotonic nanoseconds."""
    duration_s: float
    """Seconds from start to exit, start-up included."""
    value: float | None = None
    """The compared metric."""
    bytes_per_token: float | None = None
    """Demand and wasted bytes per committed token."""
    config_digest: str = ""
    """Digest of the arm's own configuration."""
    plan_mismatch: str = ""
    """First planned setting that the arm did not run with."""
    working_set_bytes: int | None = None
    """Bytes of resident weights, slots and pages; they differ when a cache budget resolved differently."""
    evidence: str = ""
    """physical, emulated, simulated or trace."""
    digests: dict[str, str] = Field(default_factory=dict)
    """Digests of output, state and routing, by tag."""
    identity: dict[str, str] = Field(default_factory=dict)
    """Sources, versions, machine and stores, by name; must be equal in all arms."""
    cached_fraction: float | None = None
    """Share of the store in the page cache just before the arm started."""
    watch: WatchRecord
    """Summary of the watchdog's readings."""

    @property
    def letter(self) -> str:
        """`A` or `B`."""
        return self.name[-1]


class CohortRecord(Config):
    """One cohort: its arms in run order, and the reasons why it is invalid, if any."""

    number: int
    """Number of the cohort in run order, from 1."""
    arms: tuple[ArmRecord, ...]
    """The arms that ran, up to four."""
    reasons: tuple[Reason, ...] = ()
    """Empty for a valid cohort."""

    @property
    def valid(self) -> bool:
        """True when there is no reason against the cohort."""
        return not self.reasons


class Series(Config):
    """Content of `artifacts/cohorts.json`: written anew after every cohort."""

    cohorts: tuple[CohortRecord, ...] = ()
    """All cohorts that were started."""
