"""Compute times of a decoded token's stages, by which the twin advances its clock: from a run, a file, or a time per token."""

from pathlib import Path
from typing import Annotated

import polars as pl
from pydantic import Field

from workbench.config import Config
from workbench.errors import BadInput
from workbench.files import read_json_object
from workbench.units import NS_PER_MS, NS_PER_US

Microseconds = Annotated[float, Field(ge=0)]
_PRE_ROUTER = ("ple", "gdn", "qsa", "router")
_SHARED = ("shared",)
_EXPERTS = ("gate_up", "down")
_OUTSIDE = -1
"""Layer number of stages that belong to no layer: embedding and head."""


class StageTimes(Config):
    """Compute times of one token, microseconds. A layer can't submit expert reads before its router's ids are known."""

    source: str
    """Source of the figures."""
    pre_router_us: tuple[Microseconds, ...] = Field(min_length=1)
    """By layer: until the router's ids are known (PLE, hyper-connections, attention, router)."""
    shared_us: tuple[Microseconds, ...] = Field(min_length=1)
    """By layer: the shared expert."""
    experts_us: tuple[Microseconds, ...] = Field(min_length=1)
    """By layer: all routed experts and their sum."""
    head_us: float = Field(0.0, ge=0)
    """Embedding and head."""
    ask_us: float = Field(0.0, ge=0)
    """CPU time per read before its submission (slot, ticket, submission call); delays the read."""
    behind_us: float = Field(0.0, ge=0)
    """CPU time per read after its submission, overlapped with the read (event logging; a memcpy on emulated disks)."""
    take_us: float = Field(0.0, ge=0)
    """CPU time per read at its completion (checksum, event logging, wake-up); blocks the compute thread."""
    wave_us: float = Field(0.0, ge=0)
    """Time per wave of missing experts beyond its share of `experts_us` (dispatch, smaller matrix products)."""

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self.pre_router_us)

    @property
    def token_ns(self) -> int:
        """Compute time of a whole token, nanoseconds; costs per read and per wave not included."""
        return round(NS_PER_US * (sum(self.pre_router_us) + sum(self.shared_us) + sum(self.experts_us) + self.head_us))

    def scaled(self, token_ns: float) -> "StageTimes":
        """Stage times in the same proportions whose `token_ns` is as given; costs per read and per wave stay as they are."""
        factor = token_ns / self.token_ns
        by_layer = {
            name: tuple(factor * us for us in getattr(self, name)) for name in ("pre_router_us", "shared_us", "experts_us")
        }
        return self.model_copy(update={**by_layer, "head_us": factor * self.head_us})

    @staticmethod
    def uniform(num_layers: int, token_ms: float) -> "StageTimes":
        """`token_ms` spread evenly over layers: 50 % before the router, 30 % experts, 10 % shared expert; 10 % for the head."""
        layer_us = token_ms * NS_PER_MS / NS_PER_US / num_layers
        return StageTimes(
            source=f"assumed: {token_ms:g} ms of compute per token, spread evenly over layers",
            pre_router_us=(0.5 * layer_us,) * num_layers,
            shared_us=(0.1 * layer_us,) * num_layers,
            experts_us=(0.3 * layer_us,) * num_layers,
            head_us=0.1 * layer_us * num_layers,
        )

    @staticmethod
    def from_attribution(events: pl.DataFrame, source: str) -> "StageTimes":
        """Mean times of a run's `stage` events; all other events are ignored. Raises BadInput when no `stage` event exists."""
        stages = events.filter(kind="stage")
        if not stages.height:
            raise BadInput(f"{source} has no stage times: its run had no attribution tokens")
        means = stages.group_by("layer", "name").agg(pl.col("duration_ns").sum())
        num_tokens = stages["position"].n_unique()
        us = {(layer, name): total_ns / num_tokens / NS_PER_US for layer, name, total_ns in means.iter_rows()}
        layers = range(max(layer for layer, _ in us) + 1)

        def of_layers(names: tuple[str, ...]) -> tuple[float, ...]:
            return tuple(sum(us.get((layer, name), 0.0) for name in names) for layer in layers)

        return StageTimes(
            source=source,
            pre_router_us=of_layers(_PRE_ROUTER),
            shared_us=of_layers(_SHARED),
            experts_us=of_layers(_EXPERTS),
            head_us=sum(time for (layer, _), time in us.items() if layer == _OUTSIDE),
        )

    @staticmethod
    def from_json(path: Path) -> "StageTimes":
        """Reads stage times from a file. Raises BadInput when the file is missing, is not JSON or has invalid fields."""
        return StageTimes.build(read_json_object(path))
