"""Settings of the gates that compare decode runs in cohorts A1 B1 B2 A2, e.g. Gate C."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from workbench.gates.base import GateConfig
from workbench.gates.traces import profile_geometry
from workbench.paths import data_folder
from workbench.schema import Evidence
from workbench.schema.envelopes import in_proportion


class ComparisonConfig(GateConfig):
    """Settings of decode runs that are compared, and of the runs that check identity."""

    envelopes: tuple[str, ...] = ()
    """Disks to emulate; empty: this disk at its own speed, but for mini every disk of data/envelopes.

    For mini each disk is slowed by the ratio of Flash-Next's record size to mini's: otherwise compute would hide every read.
    """
    compare: tuple[str, ...] = ()
    """Comparisons to run, e.g. waves; empty: all. A clause whose comparison was left out stays open."""
    prompt: str = "def main():"
    """Prompt of every arm; short, because decode is compared."""
    tokens: int = Field(default=32, ge=2)
    """Tokens that an arm decodes."""
    warm_up_tokens: int = Field(default=6, ge=1)
    """Tokens that an arm decodes first and discards, in its own process."""
    cache_over_least: float = Field(default=1.25, ge=1)
    """Bytes of slots and pages divided by the fewest that the store admits: a small cache, so that there are reads to hide."""
    cohorts: int = Field(default=4, ge=1)
    """Valid cohorts of a comparison that decides; fewer than 4 decide nothing."""
    max_cohorts: int = Field(default=6, ge=1)
    """Most cohorts tried, rejected cohorts included."""
    shown_cohorts: int = Field(default=1, ge=0)
    """Cohorts of a comparison that decides nothing and is only shown; 0 leaves these comparisons out."""
    orders: int = Field(default=20, ge=0)
    """Runs with random completion orders; none may change a digest."""
    faults: int = Field(default=20, ge=0)
    """Runs in which one read fails, hangs or is late; none may change a digest."""
    min_cohorts: int = 4
    """Fewest valid cohorts behind a comparison's interval."""
    min_orders: int = 20
    """Fewest random orders, and fewest faults, of a full verdict."""

    @property
    def runtime(self) -> Mapping[str, Any]:
        """Settings of `RuntimeConfig` that all arms have; the compared setting replaces its value in each arm."""
        return {}

    @property
    def disks(self) -> tuple[str, ...]:
        """Envelopes to emulate, in a smoke run the first alone; the empty name is this disk at its own speed."""
        found = self.envelopes or ("",)
        if not self.envelopes and self.profile == "mini":
            geometry, disks = profile_geometry(self.profile), sorted((data_folder() / "envelopes").glob("*.json"))
            found = tuple(in_proportion(path.stem, geometry) for path in disks)
        return found[:1] if self.smoke else found

    @property
    def is_emulated(self) -> bool:
        """Whether the arms run on an emulated disk."""
        return self.disks != ("",)

    @property
    def evidence(self) -> Evidence:
        """Evidence of every arm."""
        return Evidence.EMULATED if self.is_emulated else Evidence.PHYSICAL


SMOKE_COMPARISON: Mapping[str, Any] = {
    "tokens": 12,
    "warm_up_tokens": 2,
    "cohorts": 1,
    "max_cohorts": 1,
    "shown_cohorts": 0,
    "orders": 3,
    "faults": 7,
}
"""Values of these settings in a smoke run."""


def disk_words(disk: str) -> str:
    """Name of a disk for people: of its envelope's file, else `this disk`."""
    return Path(disk).name.removesuffix(".json") or "this disk"
