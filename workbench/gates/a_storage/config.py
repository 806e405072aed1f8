"""Settings and pre-registered thresholds of Gate A."""

from typing import Annotated

from pydantic import BeforeValidator, Field

from workbench.config import Count
from workbench.gates.a_storage.cells import SIZES
from workbench.gates.base import GateConfig
from workbench.units import GIB, MIB, parse_bytes

_ALL_DEPTHS = (1, 2, 4, 8, 16, 32, 64)
Bytes = Annotated[int, BeforeValidator(parse_bytes)]


class StorageConfig(GateConfig):
    """Settings of Gate A; the thresholds were registered before the first read."""

    file_bytes: Bytes = Field(default=4 * GIB, ge=8 * MIB)
    """Size of the probe file, a multiple of 8 MiB; it lies beside the profile's store."""
    keep_file: bool = False
    """Leave the probe file for the next run; else it is removed."""
    in_flight_bytes: Bytes = Field(default=96 * MIB, ge=16 * MIB)
    """Memory for reads in flight; it bounds the depth of large reads."""
    sizes: tuple[str, ...] = SIZES
    """Read sizes of the grid; record and page 4 KiB are needed."""
    depths: tuple[Count, ...] = (1, 4, 16, 64)
    """Queue depths of the grid; depths near the best are refined by halves and doubles."""
    seconds: float = Field(default=0.15, gt=0)
    """Length of one run of one cell, seconds."""
    rounds: int = Field(default=3, ge=1)
    """Repeats of the grid."""
    close_rounds: int = Field(default=7, ge=1)
    """Repeats of measurements that decide; fewer than 6 give no interval."""
    max_seconds: float = 330.0
    """Time after which no phase makes further rounds, seconds; writing the file is not counted."""
    full: bool = False
    """Every depth from 1 to 64, longer runs and more repeats, however long it takes."""
    near_best: float = Field(default=0.9, gt=0, le=1)
    """The smallest depth within this share of the best is recommended: beyond it a read only waits longer in the queue."""
    min_spread_runs: int = 14
    """A.repeatable: fewest runs of each recommended cell, from several phases, that tell its spread."""
    max_spread: float = 0.10
    """A.repeatable: the middle four fifths of the recommended cells' repeats lie within this share of their median."""
    min_reader_ratio: float = 0.90
    """A.reader: record bandwidth of the recommended reader / the buffered control at its best depth, cold; fails below this."""
    max_busy_latency: float = 3.0
    """A.interpreter: time until a single page is seen beside a busy Python thread / alone; fails above this."""
    max_slowdown: float = 1.25
    """A.interference: time of a step of MLX while records are read at the recommended depth / alone; fails above this."""
    split_ratio: float = 0.95
    """Components may be read apart when that surely keeps this share of whole records' bandwidth."""
    max_other_share: float = 0.25
    """A.quiet: share of the cores that other processes may take."""

    @property
    def effective(self) -> "StorageConfig":
        """The settings that are run: with `full`, finer and longer ones."""
        if not self.full:
            return self
        return self.model_copy(
            update={"depths": _ALL_DEPTHS, "seconds": 1.0, "rounds": 7, "close_rounds": 15, "max_seconds": 1e9}
        )


REGISTERED = (
    "near_best",
    "min_spread_runs",
    "max_spread",
    "min_reader_ratio",
    "max_busy_latency",
    "max_slowdown",
    "max_other_share",
)
"""Settings that the verdict turns on."""
