"""What a predictor is: at each router or tap it names the experts that a layer ahead will need, best first.

Keys are `layer * num_experts + expert`. A predictor knows keys, not slots, bytes or budgets, and never computes on them.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from workbench.config import Config
from workbench.plugins import short_name
from workbench.scheduling.ticket import PredictedKey, Priority, Scope


@dataclass(frozen=True, kw_only=True)
class RouteShape:
    """The routes that a predictor is made for."""

    num_layers: int
    num_experts: int
    """Of a layer."""
    top_k: int
    """Experts that a token uses in a layer."""


class PredictorSettings(Config):
    """Settings of predictors; a predictor ignores settings that it does not use."""

    lead_layers: int = Field(1, ge=1)
    """How many layers ahead the prediction is; beyond the last layer it reaches into the next token."""
    recall: float = Field(1.0, ge=0, le=1)
    """noisy_oracle: chance that a needed record is predicted."""
    precision: float = Field(1.0, gt=0, le=1)
    """noisy_oracle: share of the predictions that are needed; the rest are random records of the layer."""
    seed: int = Field(0, ge=0)
    """noisy_oracle: of its errors."""
    routes: str = ""
    """Oracles, live: a route trace (parquet) of the same prompts, from which they know the future."""

    def label(self, predictor: str) -> str:
        """A predictor with the settings that it uses, in a word or two."""
        if predictor == "nothing":
            return predictor
        ahead = f"{self.lead_layers} ahead"
        if predictor == "noisy_oracle":
            return f"{predictor} (recall {self.recall:g}, precision {self.precision:g}), {ahead}"
        return f"{short_name(predictor)}, {ahead}"


class Predictor(ABC):
    """Predicts for one engine or twin, for all of its requests."""

    name: ClassVar[str]
    """Name in configurations, events and tables; by default that of the class."""
    looks_at: ClassVar[Literal["router", "tap"]] = "router"
    """router: when a layer's router has chosen and its exact demand is queued; tensors hold `ids [T, k]`.
    tap: before attention of a layer, live only; tensors hold the wide residual `x [T, hc_count * H]`."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" not in vars(cls):
            cls.name = cls.__name__

    def __init__(self, shape: RouteShape, settings: PredictorSettings) -> None:
        self.shape, self.settings = shape, settings

    @property
    def lead_layers(self) -> int:
        """How many layers ahead of the present one the predicted layer is."""
        return self.settings.lead_layers

    @property
    def priority(self) -> Priority:
        """Class of the reads: P1 where the next router asks for them, P2 beyond."""
        return Priority.P1 if self.lead_layers <= 1 else Priority.P2

    @abstractmethod
    def look(self, scope: Scope, layer: int, tensors: Mapping[str, Any]) -> Sequence[PredictedKey]:
        """Keys of one layer, best first; empty where nothing is predicted."""

    def committed(self, scope: Scope, layer: int, keys: Sequence[Sequence[int]] | np.ndarray) -> None:  # noqa: B027 - optional
        """Record keys of one layer that committed tokens used, by token `[n, k]`; keys of rejected tokens are never passed."""

    def ahead(self, layer: int) -> tuple[int, int]:
        """The predicted layer, and how many passes ahead it is."""
        passes, target = divmod(layer + self.lead_layers, self.shape.num_layers)
        return target, passes
