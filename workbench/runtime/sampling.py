"""Choosing the next token from logits: greedy by default, temperature and top-p when asked."""

import numpy as np
from pydantic import Field

from workbench.config import Config, Seed


class SamplingConfig(Config):
    """How the next token is chosen."""

    temperature: float = Field(0.0, ge=0)
    """0: greedy. Otherwise logits are divided by it."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Keeps the smallest set of tokens whose summed probability reaches this value (1: all tokens)."""
    seed: Seed = 0
    """Seed of the generator; the same seed and logits give the same tokens."""


class Sampler:
    """Draws tokens from logits `[vocab]`."""

    def __init__(self, config: SamplingConfig) -> None:
        self._config = config
        self._random = np.random.default_rng(config.seed)

    def choose(self, logits: np.ndarray) -> int:
        """The next token's id; ties go to the lowest id."""
        if self._config.temperature == 0:
            return int(np.argmax(logits))
        order = np.argsort(-logits, kind="stable")
        scaled = logits[order].astype(np.float64) / self._config.temperature
        probabilities = np.exp(scaled - scaled[0])
        probabilities /= probabilities.sum()
        kept = int(np.searchsorted(np.cumsum(probabilities), self._config.top_p)) + 1
        kept_probabilities = probabilities[:kept] / probabilities[:kept].sum()
        return int(order[self._random.choice(len(kept_probabilities), p=kept_probabilities)])
