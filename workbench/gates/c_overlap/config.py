"""Settings and pre-registered thresholds of Gate C."""

from typing import Literal

from pydantic import Field

from workbench.gates.base import GateConfig
from workbench.gates.traces import profile_geometry
from workbench.paths import data_folder
from workbench.schema.envelopes import in_proportion


class OverlapConfig(GateConfig):
    """Settings of Gate C; the thresholds were registered before the first read."""

    envelopes: tuple[str, ...] = ()
    """Disks to emulate; empty: this disk at its own speed, for mini all of data/envelopes.

    Those are slowed in proportion to mini's records: at their own speed compute hides every read.
    """
    compare: tuple[str, ...] = ()
    """Comparisons to run, e.g. waves; empty: all. A clause whose comparison was left out stays open."""
    prompt: str = "def main():"
    """What every arm goes on from; short, because decode is what is compared."""
    tokens: int = Field(default=32, ge=2)
    """Tokens that an arm decodes."""
    warm_up_tokens: int = Field(default=6, ge=1)
    """Tokens that an arm decodes first and discards, in its own process."""
    cache_over_least: float = Field(default=1.25, ge=1)
    """Bytes of slots and pages over the smallest that the store admits: small, so that reads are there to hide."""
    cohorts: int = Field(default=4, ge=1)
    """Valid cohorts of what decides; fewer than 4 decide nothing."""
    max_cohorts: int = Field(default=6, ge=1)
    """Cohorts tried at most, the rejected ones counted."""
    shown_cohorts: int = Field(default=1, ge=0)
    """Cohorts of what is only shown: other wave widths, read-back, the whole next layer."""
    wave: Literal[1, 2, 4, "all"] = 1
    """Width of the waves that decide: the runtime's default."""
    orders: int = Field(default=20, ge=0)
    """Random completion orders that must leave the digests as they are."""
    faults: int = Field(default=20, ge=0)
    """Positions at which a single read goes wrong, and the digests must stay."""
    overlap_rounds: int = Field(default=21, ge=1)
    """Repeats of compute and reads alone and together; fewer than 6 give no interval."""
    overlap_seconds: float = Field(default=0.15, gt=0)
    """Of each of them alone."""
    tiles: tuple[int, ...] = ()
    """Prompt tokens of the tiles that try the prefill modes; empty: from few records of a layer to all of them."""
    mode_repeats: int = Field(default=4, ge=1)
    """Repeats of every tile and mode."""
    min_cohorts: int = 4
    """C.*: fewest valid cohorts behind a comparison's interval."""
    min_orders: int = 20
    """C.identity: fewest random orders, and fewest faults, of a full verdict."""
    max_wait_ratio: float = 1.0
    """C.exposed_wait (H4): exposed wait a token with waves over that behind a barrier must be below this."""
    min_wave_gain: float = 0.02
    """C.waves (H4): what waves gain in tokens/s over a barrier, commands paid, must not be below this."""
    min_split_ratio: float = 0.95
    """C.split (H4): bytes read a second, components apart over whole records, must not be below this."""
    min_overlap: float = 0.5
    """C.interference (H4): rates of compute and reads at once, each over its rate alone, sum less 1, must not be below this."""
    max_ple_wait: float = 0.05
    """C.ple_wait (H1): exposed wait for pages that were asked for early, over token time, must not be above this."""
    max_lane_cost: float = 0.01
    """C.ple_lanes (H1): exposed waits with page lanes less those with one queue, over token time, must not be above this."""
    near_full: float = 0.9
    """C.micro_full (H5): a tile whose union is this share of a layer is near the full layer."""
    max_full_ratio: float = 1.0
    """C.micro_full (H5): time of macro over micro prefill at such tiles must not be above this."""
    max_overread: float = 1.0
    """C.macro_overlap (H5): time of macro's over-read, over the reading it hid, at tiles where it is chosen: not above this."""
    max_choice_loss: float = 0.05
    """C.crossover (H5): time of the chosen mode over the faster one's, less 1, must not be above this at any tile."""

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
        """Whether the arms are slowed to another disk."""
        return self.disks != ("",)


REGISTERED = (
    "wave",
    "min_cohorts",
    "min_orders",
    "max_wait_ratio",
    "min_wave_gain",
    "min_split_ratio",
    "min_overlap",
    "max_ple_wait",
    "max_lane_cost",
    "near_full",
    "max_full_ratio",
    "max_overread",
    "max_choice_loss",
)
"""Settings that the verdict turns on."""
