"""Settings of a streamed run: how experts and n-gram rows are read from disk."""

from typing import Any, Literal

from pydantic import Field, model_validator

from workbench.config import Config
from workbench.plugins import Plugin
from workbench.prediction import ClassBudgets, PredictorSettings
from workbench.scheduling.ticket import WaveSize


class RuntimeConfig(Config):
    """How experts and n-gram rows are read from disk."""

    cache_bytes: int | None = None
    """Bytes of record slots plus n-gram pages; absent: half of the memory that is available, or everything if that is less."""
    policy: Plugin = "lfru"
    """Eviction policy of both pools: a name, or a class of your own as `file.py:Class`."""
    uncached: bool = True
    """Read past the page cache (O_DIRECT, F_NOCACHE), so that a cached byte is one of our slots."""
    checksums: bool = True
    """Check every component and page as it arrives."""
    expert_depth: int = Field(16, ge=1, le=512)
    """Expert reads at the disk at once."""
    ple_depth: int = Field(64, ge=1, le=512)
    """N-gram page reads at the disk at once, in a queue of their own."""
    layer_depth: int = Field(4, ge=1, le=64)
    """Chunks of whole layers at the disk at once."""
    wave: WaveSize = 1
    """Fewest missing experts of a layer that run together as they arrive; barrier: no expert starts before all are there."""
    split_components: bool = False
    """Read gate+up and down of a record apart, so that gate and up can run while down is being read."""
    ple: Literal["early", "late"] = "early"
    """When n-gram pages are asked for: as soon as the tokens are known, or where the layer needs them (the control)."""
    queue: Literal["lanes", "fifo"] = "lanes"
    """lanes: a queue of their own for n-gram pages; fifo: one queue and depth for pages and records (the control)."""
    readback: Literal["ids", "misses"] = "ids"
    """What the host reads of a route before the experts run: every id, or the missing ones only."""
    predictor: Plugin = "nothing"
    """What predicts expert reads: nothing, previous_token, next_layer (the whole layer), oracle, noisy_oracle, or a class of
    your own as `file.py:Class`."""
    predictor_settings: PredictorSettings = PredictorSettings()
    """Of the predictor."""
    budgets: ClassBudgets = ClassBudgets()
    """Bytes, slots and reads that predictions may take."""
    envelope: str = ""
    """A disk of `data/envelopes` (its name, or a path) that the reads are slowed to: the run is emulated. Empty: this disk."""
    prefill: Literal["auto", "macro", "micro"] = "auto"
    """How a tile of the prompt gets its experts: whole layers in sequence, the union of what it needs, or the faster one."""
    ring_share: float = Field(0.25, gt=0, le=1)
    """Part of the slots that whole layers may borrow while they pass through."""

    @model_validator(mode="before")
    @classmethod
    def _renamed(cls, values: Any) -> Any:
        if isinstance(values, dict) and "prefetch" in values:
            raise ValueError('prefetch is now called predictor: write predictor = "nothing" or "next_layer"')
        return values
