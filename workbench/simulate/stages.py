"""Stage times of a decoded token, which the twin plays on its clock: from an attribution run, a file, or one figure a token."""

import json
from pathlib import Path

import polars as pl
from pydantic import Field

from workbench.config import Config
from workbench.errors import BadInput
from workbench.units import NS_PER_MS, NS_PER_US

_PRE_ROUTER = ("ple", "gdn", "qsa", "router")
_SHARED = ("shared",)
_EXPERTS = ("gate_up", "down")
_OUTSIDE = -1
"""Layer number of stages that belong to no layer: embedding and head."""


class StageTimes(Config):
    """Compute of one token, by layer, microseconds. A layer needs its router's ids before it can read anything."""

    source: str
    """Where the figures come from."""
    pre_router_us: tuple[float, ...]
    """Until the router's ids are known: PLE, hyper-connections, attention, router."""
    shared_us: tuple[float, ...]
    """Shared expert."""
    experts_us: tuple[float, ...]
    """All routed experts and their sum."""
    head_us: float = Field(0.0, ge=0)
    """Embedding and head."""
    ask_us: float = Field(0.0, ge=0)
    """What a read costs the thread that computes before it goes off: slot, ticket, submission."""
    behind_us: float = Field(0.0, ge=0)
    """The same once it has gone off, while it flies: notes, a copy where the disk is emulated."""
    take_us: float = Field(0.0, ge=0)
    """The same when its bytes are there: check, events, wake-up; compute stands still meanwhile."""
    wave_us: float = Field(0.0, ge=0)
    """What a wave of missing experts takes longer than its share of all experts together: its dispatch, and smaller products."""

    @property
    def num_layers(self) -> int:
        """Layers that have times."""
        return len(self.pre_router_us)

    @property
    def token_ns(self) -> int:
        """Compute of a whole token."""
        return round(NS_PER_US * (sum(self.pre_router_us) + sum(self.shared_us) + sum(self.experts_us) + self.head_us))

    def scaled(self, token_ns: float) -> "StageTimes":
        """The same proportions for a token whose compute takes `token_ns`."""
        factor = token_ns / self.token_ns
        by_layer = {
            name: tuple(factor * us for us in getattr(self, name)) for name in ("pre_router_us", "shared_us", "experts_us")
        }
        return self.model_copy(update={**by_layer, "head_us": factor * self.head_us})

    @staticmethod
    def uniform(num_layers: int, token_ms: float) -> "StageTimes":
        """Equal layers of `token_ms` in all: half of it before the router, 30 % in experts, 10 % each shared and head."""
        layer_us = token_ms * NS_PER_MS / NS_PER_US / num_layers
        return StageTimes(
            source=f"assumed: {token_ms:g} ms of compute a token, spread evenly",
            pre_router_us=(0.5 * layer_us,) * num_layers,
            shared_us=(0.1 * layer_us,) * num_layers,
            experts_us=(0.3 * layer_us,) * num_layers,
            head_us=0.1 * layer_us * num_layers,
        )

    @staticmethod
    def from_attribution(events: pl.DataFrame, source: str) -> "StageTimes":
        """Mean times of a run's `stage` events; nothing else of the run is looked at. Raises BadInput when it has none."""
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
        """Reads a file. Raises BadInput when it is missing, is not JSON or says something else."""
        try:
            return StageTimes.build(json.loads(path.read_text()))
        except FileNotFoundError:
            raise BadInput(f"no such file of stage times: {path}") from None
        except json.JSONDecodeError as error:
            raise BadInput(f"{path} is not JSON: {error}") from None
