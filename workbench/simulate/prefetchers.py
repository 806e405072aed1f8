"""Prefetchers of the twin: what is predicted for a layer ahead, when the router of the present one has spoken."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from workbench.config import Config

Keys = Sequence[Sequence[int]]
"""Records of each layer event of a session, in the order in which they are demanded."""


class PrefetchConfig(Config):
    """Which predictions are made, and how good they are."""

    kind: Literal["none", "previous-token", "oracle"] = "none"
    """`previous-token`: the layer will need what it needed for the token before. `oracle`: what it will need, made worse
    by `recall` and `precision`; 1 and 1 is the perfect one."""
    lead_layers: int = Field(1, ge=1)
    """How many layer events ahead the prediction is; beyond the last layer it reaches into the next token."""
    recall: float = Field(1.0, ge=0, le=1)
    """Oracle: chance that a needed record is predicted."""
    precision: float = Field(1.0, gt=0, le=1)
    """Oracle: share of the predictions that are needed; the rest are random records of the layer."""

    @property
    def label(self) -> str:
        """One word or two for tables."""
        if self.kind != "oracle":
            return self.kind
        grade = "perfect" if self.recall == self.precision == 1 else f"recall {self.recall:g}, precision {self.precision:g}"
        return f"oracle ({grade}), {self.lead_layers} ahead"


class Prefetcher(ABC):
    """Predicts the records of a layer event before its router speaks."""

    @abstractmethod
    def predict(self, index: int) -> list[int]:
        """Keys predicted for event `index` of the session, best first."""


class NoPrefetch(Prefetcher):
    """Predicts nothing."""

    def predict(self, index: int) -> list[int]:
        """Nothing."""
        return []


class PreviousToken(Prefetcher):
    """Predicts what the same layer needed one token earlier."""

    def __init__(self, keys: Keys, num_layers: int) -> None:
        self._keys, self._num_layers = keys, num_layers

    def predict(self, index: int) -> list[int]:
        """See `Prefetcher.predict`."""
        return list(self._keys[index - self._num_layers]) if self._num_layers <= index < len(self._keys) else []


class Oracle(Prefetcher):
    """Knows the future and forgets or errs at given rates, drawn from the seed before the session begins."""

    def __init__(self, keys: Keys, num_experts: int, config: PrefetchConfig, seed: int) -> None:
        self._keys, self._num_experts, self._perfect = keys, num_experts, config.recall == config.precision == 1
        rng = np.random.default_rng(seed)
        widest = max(map(len, keys), default=0)
        self._kept = rng.random((len(keys), widest), np.float32) < config.recall
        odds_wrong = min(1.0, config.recall * (1 - config.precision) / config.precision)
        self._erred = rng.random((len(keys), widest), np.float32) < odds_wrong
        self._strangers = rng.integers(num_experts, size=(len(keys), widest))

    def predict(self, index: int) -> list[int]:
        """See `Prefetcher.predict`. A wrong record follows the place of the one whose prediction it accompanies."""
        if index >= len(self._keys):
            return []
        needed = self._keys[index]
        if self._perfect:
            return list(needed)
        first = needed[0] // self._num_experts * self._num_experts
        chances = zip(needed, self._kept[index].tolist(), self._erred[index].tolist(), self._strangers[index].tolist())
        predicted = []
        for key, kept, erred, stranger in chances:
            if kept:
                predicted.append(key)
            if erred and first + stranger not in needed:
                predicted.append(first + stranger)
        return predicted


def make_prefetcher(config: PrefetchConfig, keys: Keys, *, num_layers: int, num_experts: int, seed: int) -> Prefetcher:
    """The prefetcher of a configuration for one session's layer events."""
    if config.kind == "none":
        return NoPrefetch()
    if config.kind == "previous-token":
        return PreviousToken(keys, num_layers)
    return Oracle(keys, num_experts, config, seed)
