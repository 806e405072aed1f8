"""The predictor protocol: at each router or tap, a predictor names the experts that a layer ahead will need, most urgent first.

Keys are `layer * num_experts + expert`. A predictor sees keys only: no slots, bytes or budgets.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from workbench.config import Config, Seed
from workbench.plugins import short_name
from workbench.scheduling.ticket import PredictedKey, Priority, Scope


@dataclass(frozen=True, kw_only=True)
class RouteShape:
    """Geometry of the routes that a predictor predicts."""

    num_layers: int
    num_experts: int
    """Experts per layer."""
    top_k: int
    """Experts that a token uses per layer."""


class PredictorSettings(Config):
    """Settings of predictors; a predictor ignores settings that it does not use."""

    lead_layers: int = Field(1, ge=1)
    """Layers from the present layer to the predicted one; beyond the last layer, the prediction is for the next token."""
    recall: float = Field(1.0, ge=0, le=1)
    """noisy_oracle: probability that a needed record is predicted."""
    precision: float = Field(1.0, gt=0, le=1)
    """noisy_oracle: share of the predictions that are needed; the rest are random records of the layer."""
    seed: Seed = 0
    """noisy_oracle: seed of its errors."""
    routes: str = ""
    """Oracles in live runs: path of a route trace (parquet) of the same prompts, from which they know the future."""

    def label(self, predictor: str) -> str:
        """Label for tables: the predictor's name with the settings that it uses."""
        if predictor == "nothing":
            return predictor
        ahead = f"{self.lead_layers} ahead"
        if predictor == "noisy_oracle":
            return f"{predictor} (recall {self.recall:g}, precision {self.precision:g}), {ahead}"
        return f"{short_name(predictor)}, {ahead}"


class Predictor(ABC):
    """A predictor for all requests of one engine or twin."""

    name: ClassVar[str]
    """Name in configurations, events and tables; default: the class's name."""
    looks_at: ClassVar[Literal["router", "tap"]] = "router"
    """When `look` is called. router: after a layer's router has chosen and its exact demand is queued; `tensors` holds
    `ids [T, k]`. tap: before a layer's attention, live only; `tensors` holds the residual streams `x [T, hc_count * H]`."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" not in vars(cls):
            cls.name = cls.__name__

    def __init__(self, shape: RouteShape, settings: PredictorSettings) -> None:
        self.shape, self.settings = shape, settings

    @property
    def lead_layers(self) -> int:
        """Layers from the present layer to the predicted one."""
        return self.settings.lead_layers

    @property
    def priority(self) -> Priority:
        """Priority class of the reads: P1 when the next layer is predicted, P2 for layers beyond."""
        return Priority.P1 if self.lead_layers <= 1 else Priority.P2

    @abstractmethod
    def look(self, scope: Scope, layer: int, tensors: Mapping[str, Any]) -> Sequence[PredictedKey]:
        """Predicted keys, all of one layer, most urgent first; empty: no prediction. Called at `layer`, with its `tensors`."""

    def committed(self, scope: Scope, layer: int, keys: Sequence[Sequence[int]] | np.ndarray) -> None:  # noqa: B027 - optional
        """Gets the record keys `[n, k]` that committed tokens used in `layer`; keys of rejected tokens are never passed."""

    def ahead(self, layer: int) -> tuple[int, int]:
        """The predicted layer, and the number of passes from the present pass to the predicted one."""
        passes, target = divmod(layer + self.lead_layers, self.shape.num_layers)
        return target, passes
