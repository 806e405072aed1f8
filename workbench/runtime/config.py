"""Settings of a streamed run: how experts and n-gram rows are read from disk."""

from typing import Any, Literal

from pydantic import Field, model_validator

from workbench.config import Config
from workbench.policies import PolicyName
from workbench.prediction import ClassBudgets, PredictorName, PredictorSettings
from workbench.scheduling.ticket import WaveSize
from workbench.schema.envelopes import load_envelope


class RuntimeConfig(Config):
    """How experts and n-gram rows are read from disk."""

    cache_bytes: int | None = Field(None, ge=1)
    """Bytes of record slots plus n-gram pages; absent: half of the memory that is available, or everything if that is less."""
    policy: PolicyName = "lfru"
    """Eviction policy of both pools: a name, or a class of your own as `file.py:Class`."""
    uncached: bool = True
    """Read past the page cache (O_DIRECT, F_NOCACHE), so that a cached byte is one of our slots."""
    checksums: bool = True
    """Compare the CRC-32 of every component and page that is read."""
    expert_depth: int = Field(16, ge=1, le=512)
    """Expert reads in flight."""
    ple_depth: int = Field(64, ge=1, le=512)
    """N-gram page reads in flight, in a queue of their own."""
    layer_depth: int = Field(4, ge=1, le=64)
    """Reads of chunks of whole layers in flight."""
    wave: WaveSize = 1
    """Fewest missing experts that one wave computes together as reads complete; barrier: none before all are complete."""
    split_components: bool = False
    """Read gate+up and down of a record by two reads, so that gate and up can run while down is read."""
    ple: Literal["early", "late"] = "early"
    """When n-gram pages are demanded: as soon as tokens are known (early), or at the layer that uses them (the control)."""
    queue: Literal["lanes", "fifo"] = "lanes"
    """lanes: a queue of their own for n-gram pages; fifo: one queue and depth for pages and records (the control)."""
    readback: Literal["ids", "misses"] = "ids"
    """Router ids that the host reads back before the experts run: all, or those of missing experts only."""
    predictor: PredictorName = "nothing"
    """What predicts expert reads: nothing, previous_token, next_layer (the whole layer), oracle, noisy_oracle, or a class of
    your own as `file.py:Class`."""
    predictor_settings: PredictorSettings = PredictorSettings()
    """Settings of the predictor."""
    budgets: ClassBudgets = ClassBudgets()
    """Limits of predicted reads: bytes, slots and reads in flight."""
    envelope: str = ""
    """A disk of `data/envelopes` (its name, or a path) that the reads are slowed to: the run is emulated. Empty: this disk."""
    prefill: Literal["auto", "macro", "micro"] = "auto"
    """Reads of a prompt tile's experts: whole layers in sequence (macro), chosen experts only (micro), or the faster (auto)."""
    ring_share: float = Field(0.25, gt=0, le=1)
    """Share of the slots that reads of whole layers may borrow."""

    def check_envelope(self) -> None:
        """Raises BadInput when there is no such envelope: before a run makes its folder."""
        if self.envelope:
            load_envelope(self.envelope)

    @model_validator(mode="before")
    @classmethod
    def _renamed(cls, values: Any) -> Any:
        if isinstance(values, dict) and "prefetch" in values:
            raise ValueError('prefetch is now called predictor: write predictor = "nothing" or "next_layer"')
        return values
