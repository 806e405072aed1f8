"""Settings and pre-registered thresholds of Gate C."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from workbench.config import WORD_OR_INTEGER, Count
from workbench.gates.shared.config import ComparisonConfig


class OverlapConfig(ComparisonConfig):
    """Settings of Gate C; the thresholds were registered before the first read."""

    wave: Annotated[Literal[1, 2, 4, "all"], WORD_OR_INTEGER] = 1
    """Width of the waves that decide, in experts: the runtime's default."""
    overlap_rounds: int = Field(default=21, ge=1)
    """Repeats of compute and reads alone and at once; fewer than 6 give no interval."""
    overlap_seconds: float = Field(default=0.15, gt=0)
    """Length of each of these measurements, seconds."""
    tiles: tuple[Count, ...] = ()
    """Prompt tokens of the tiles that try the prefill modes; empty: from tiles that use few records of a layer to all."""
    mode_repeats: int = Field(default=4, ge=1)
    """Repeats of every tile and mode."""
    max_wait_ratio: float = 1.0
    """C.exposed_wait (H4): exposed wait per token with waves / with a barrier; fails unless below this."""
    min_wave_gain: float = 0.02
    """C.waves (H4): tokens/s with waves / with a barrier, less 1, dispatch cost included; fails below this."""
    min_split_ratio: float = 0.95
    """C.split (H4): bytes read per second, components of records apart / whole records; fails below this."""
    min_overlap: float = 0.5
    """C.interference (H4): sum of the rates of compute and of reads at once, each / its rate alone, less 1; fails below this."""
    max_ple_wait: float = 0.05
    """C.ple_wait (H1): exposed wait for n-gram pages requested early / token time; fails above this."""
    max_lane_cost: float = 0.01
    """C.ple_lanes (H1): (exposed waits with page lanes - with one queue) / token time; fails above this."""
    near_full: float = 0.9
    """C.micro_full (H5): a tile whose experts hold at least this share of a layer's bytes is near the full layer."""
    max_full_ratio: float = 1.0
    """C.micro_full (H5): prefill seconds, macro / micro, at such tiles; fails above this."""
    max_overread: float = 1.0
    """C.macro_overlap (H5): in macro mode, (time reading records that no token used) / (read time hidden behind compute), at
    tiles where macro is chosen; fails above this."""
    max_choice_loss: float = 0.05
    """C.crossover (H5): prefill seconds, chosen mode / faster mode, less 1, at the worst tile; fails above this."""

    @property
    def runtime(self) -> Mapping[str, Any]:
        """All arms decode in waves of this width, except where a comparison changes it."""
        return {"wave": self.wave}


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
