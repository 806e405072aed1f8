"""Control traces without temporal locality: the same tokens with independently drawn experts."""

import numpy as np

from workbench.analysis.routes import Array, Routes

_CHUNK_TOKENS = 1024


def uniform_draws(routes: Routes, seed: int) -> Routes:
    """A control trace in which every token of every layer draws K of E experts, all equally likely."""
    rng = np.random.default_rng(seed)
    num_tokens, num_layers, top_k = routes.experts.shape
    drawn = np.empty_like(routes.experts)
    for start in range(0, num_tokens, _CHUNK_TOKENS):
        stop = min(start + _CHUNK_TOKENS, num_tokens)
        keys = rng.random((stop - start, num_layers, routes.num_experts), dtype=np.float32)
        drawn[start:stop] = np.argpartition(keys, top_k, axis=-1)[..., :top_k]
    return routes.with_experts(drawn)


def popularity_draws(routes: Routes, seed: int) -> Routes:
    """A control trace in which every token of every layer gets the experts of a random decoded token in that layer.

    Each expert keeps its measured popularity exactly in expectation; order in time and between layers is lost.
    """
    rng = np.random.default_rng(seed)
    pool = routes.experts[routes.decoded]
    sources = rng.integers(len(pool), size=routes.experts.shape[:2])
    return routes.with_experts(pool[sources, np.arange(routes.num_layers)])


def drawn_overlap(usage: Array, top_k: int) -> Array:
    """`[L]` expected share of a token's experts that an independent token selects as well; `usage` is `[L, E]`."""
    return (usage**2).sum(axis=-1) / top_k


def drawn_union(usage: Array, block: int) -> Array:
    """`[L]` expected distinct experts of `block` independent tokens whose experts have popularity `usage`."""
    return (1 - (1 - usage) ** block).sum(axis=-1)


def uniform_usage(num_layers: int, num_experts: int, top_k: int) -> Array:
    """`[L, E]` popularity when all experts are equally likely."""
    return np.full((num_layers, num_experts), top_k / num_experts)
