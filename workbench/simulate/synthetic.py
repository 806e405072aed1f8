"""Flash-Next-like routes: synthetic ones that reproduce published marginals. The same seed gives the same routes."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from workbench.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class RouteModel:
    """A model of a router: each token takes the `top_k` active experts of the highest score.

    An expert's score is the sum of three independent Gaussian parts whose variances add up to 1: popularity (fixed, the same
    for all requests), topic (a first-order autoregressive process per request) and token (another such process, of low
    correlation). Defaults: Flash-Next's geometry, with shares and correlations fitted to its published marginals.
    """

    num_layers: int = 48
    num_experts: int = 512
    top_k: int = 10
    num_early_layers: int = 8
    """Number of first layers, whose scores depend more on the token and less on the topic."""
    active_share: float = 0.6
    """Share of a layer's experts that a request uses at all."""
    carried_share: float = 0.8
    """Share of the active experts that stay active in the next request; fitted to published misses, not to a marginal."""
    popularity_share: float = 0.37
    """Share of the variance that is popularity."""
    topic_share: float = 0.3
    """Share of the variance that is topic."""
    early_topic_share: float = 0.14
    """`topic_share` of early layers."""
    topic_tokens: float = 6.5
    """Tokens after which the topic part's correlation falls to 1/e."""
    token_correlation: float = 0.35
    """Correlation of the token part between consecutive tokens."""
    early_token_correlation: float = 0.05
    """`token_correlation` of early layers."""

    def __post_init__(self) -> None:
        if not 0 < self.top_k <= self.active_share * self.num_experts:
            raise BadInput(f"top-{self.top_k} needs that many active experts, there are {self.num_active} of {self.num_experts}")
        if max(self.topic_share, self.early_topic_share) + self.popularity_share > 1:
            raise BadInput("shares of popularity and topic add up to more than 1")

    @property
    def num_active(self) -> int:
        """Experts of a layer that a request uses at all."""
        return round(self.active_share * self.num_experts)


FLASH_NEXT_LIKE = RouteModel()


def synthetic_routes(model: RouteModel, *, num_requests: int, num_tokens: int, seed: int) -> np.ndarray:
    """Routes of `model`, int16 `[requests, tokens, layers, top_k]`, ids in rank order."""
    rng = np.random.default_rng(seed)
    popularity = rng.standard_normal((model.num_layers, model.num_experts), np.float32)
    order = rng.permuted(np.tile(np.arange(model.num_experts), (model.num_layers, 1)), axis=1)
    routes = np.empty((num_requests, num_tokens, model.num_layers, model.top_k), np.int16)
    for request in range(num_requests):
        if request:
            order = _renew_active(order, model, rng)
        active = order[:, : model.num_active]
        for token, scores in enumerate(_scores(model, np.take_along_axis(popularity, active, 1), num_tokens, rng)):
            routes[request, token] = np.take_along_axis(active, _top(scores, model.top_k), 1)
    return routes


def _renew_active(order: np.ndarray, model: RouteModel, rng: np.random.Generator) -> np.ndarray:
    """A new order of experts; of its first `num_active` experts, `carried_share` were active before."""
    num_kept = round(model.carried_share * model.num_active)
    shuffled = rng.permuted(order[:, : model.num_active], axis=1)
    kept, rest = shuffled[:, :num_kept], np.concatenate([order[:, model.num_active :], shuffled[:, num_kept:]], axis=1)
    return np.concatenate([kept, rng.permuted(rest, axis=1)], axis=1)


def _scores(model: RouteModel, popularity: np.ndarray, num_tokens: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Scores `[layers, active]` of each token of one request."""
    is_early = np.arange(model.num_layers)[:, None] < model.num_early_layers
    topic_share = np.where(is_early, model.early_topic_share, model.topic_share).astype(np.float32)
    correlation = np.where(is_early, model.early_token_correlation, model.token_correlation).astype(np.float32)
    memory = np.float32(np.exp(-1 / model.topic_tokens))
    fixed = np.float32(np.sqrt(model.popularity_share)) * popularity
    topic, own = rng.standard_normal((2, *popularity.shape), np.float32)
    for _ in range(num_tokens):
        yield fixed + np.sqrt(topic_share) * topic + np.sqrt(1 - model.popularity_share - topic_share) * own
        news = rng.standard_normal((2, *popularity.shape), np.float32)
        topic = memory * topic + np.sqrt(1 - memory**2) * news[0]
        own = correlation * own + np.sqrt(1 - correlation**2) * news[1]


def _top(scores: np.ndarray, top_k: int) -> np.ndarray:
    """Columns of the `top_k` highest scores of each row, highest first."""
    best = np.argpartition(-scores, top_k - 1, axis=1)[:, :top_k]
    return np.take_along_axis(best, np.argsort(-np.take_along_axis(scores, best, 1), axis=1), 1)
