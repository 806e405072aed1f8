"""Planted routes, int16 `[requests, tokens, layers, top_k]`, of known locality: controls for gates and policies."""

import numpy as np

from workbench.errors import BadInput


def independent(*, num_requests: int, num_tokens: int, num_layers: int, num_experts: int, top_k: int, seed: int) -> np.ndarray:
    """Routes without locality: every token draws its experts uniformly, independently of all other tokens."""
    rng = np.random.default_rng(seed)
    draws = rng.random((num_requests, num_tokens, num_layers, num_experts), np.float32)
    return np.argpartition(draws, top_k - 1, axis=-1)[..., :top_k].astype(np.int16)


def repeated(*, num_requests: int, num_tokens: int, num_layers: int, num_experts: int, top_k: int, seed: int) -> np.ndarray:
    """Routes of perfect locality: all tokens of a request use the same experts."""
    shape = {"num_requests": num_requests, "num_layers": num_layers, "num_experts": num_experts, "top_k": top_k}
    return np.repeat(independent(num_tokens=1, seed=seed, **shape), num_tokens, axis=1)


def loop(*, num_requests: int, num_tokens: int, num_layers: int, num_experts: int, top_k: int, period: int) -> np.ndarray:
    """Routes that cycle through `period` disjoint sets of experts: LRU misses everything in a cache just below the cycle.

    Raises BadInput when a layer has too few experts for disjoint sets.
    """
    if period * top_k > num_experts:
        raise BadInput(f"a loop of {period} tokens needs {period * top_k} experts per layer, there are {num_experts}")
    cycle = (np.arange(num_tokens)[:, None] % period) * top_k + np.arange(top_k)
    shape = (num_requests, num_tokens, num_layers, top_k)
    return np.broadcast_to(cycle[None, :, None, :], shape).astype(np.int16)


def scan(*, num_requests: int, num_tokens: int, num_layers: int, num_experts: int, top_k: int, num_hot: int) -> np.ndarray:
    """Routes in which half of each token's experts cycle through `num_hot` hot experts, and half through all other experts.

    Raises BadInput when there are too few hot experts or too few other experts.
    """
    half = top_k // 2
    num_swept = num_experts - num_hot
    if half < 1 or num_hot < half or num_swept < top_k - half:
        raise BadInput(f"a scan of top-{top_k} can't have {num_hot} hot experts of {num_experts}")
    token = np.arange(num_tokens)[:, None]
    hot = (token * half + np.arange(half)) % num_hot
    swept = num_hot + (token * (top_k - half) + np.arange(top_k - half)) % num_swept
    shape = (num_requests, num_tokens, num_layers, top_k)
    return np.broadcast_to(np.concatenate([hot, swept], axis=1)[None, :, None, :], shape).astype(np.int16)
