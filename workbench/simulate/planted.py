"""Planted routes, int16 `[requests, tokens, layers, top_k]`, whose locality is known: to see that gates and policies notice."""

import numpy as np

from workbench.errors import BadInput


def independent(*, num_requests: int, num_tokens: int, num_layers: int, num_experts: int, top_k: int, seed: int) -> np.ndarray:
    """Every token draws its experts uniformly, without memory: no locality at all."""
    rng = np.random.default_rng(seed)
    draws = rng.random((num_requests, num_tokens, num_layers, num_experts), np.float32)
    return np.argpartition(draws, top_k - 1, axis=-1)[..., :top_k].astype(np.int16)


def repeated(*, num_requests: int, num_tokens: int, num_layers: int, num_experts: int, top_k: int, seed: int) -> np.ndarray:
    """A request repeats one token's experts for ever: perfect locality."""
    shape = {"num_requests": num_requests, "num_layers": num_layers, "num_experts": num_experts, "top_k": top_k}
    return np.repeat(independent(num_tokens=1, seed=seed, **shape), num_tokens, axis=1)


def loop(*, num_requests: int, num_tokens: int, num_layers: int, num_experts: int, top_k: int, period: int) -> np.ndarray:
    """Tokens cycle through `period` disjoint sets: LRU misses everything in a cache just below the cycle."""
    if period * top_k > num_experts:
        raise BadInput(f"a loop of {period} tokens needs {period * top_k} experts a layer, there are {num_experts}")
    cycle = (np.arange(num_tokens)[:, None] % period) * top_k + np.arange(top_k)
    shape = (num_requests, num_tokens, num_layers, top_k)
    return np.broadcast_to(cycle[None, :, None, :], shape).astype(np.int16)


def scan(*, num_requests: int, num_tokens: int, num_layers: int, num_experts: int, top_k: int, num_hot: int) -> np.ndarray:
    """Half of each token's experts come, in turn, from `num_hot` hot ones; the other half sweeps through all the rest."""
    half = top_k // 2
    num_swept = num_experts - num_hot
    if half < 1 or num_hot < half or num_swept < top_k - half:
        raise BadInput(f"a scan of top-{top_k} can't have {num_hot} hot experts of {num_experts}")
    token = np.arange(num_tokens)[:, None]
    hot = (token * half + np.arange(half)) % num_hot
    swept = num_hot + (token * (top_k - half) + np.arange(top_k - half)) % num_swept
    shape = (num_requests, num_tokens, num_layers, top_k)
    return np.broadcast_to(np.concatenate([hot, swept], axis=1)[None, :, None, :], shape).astype(np.int16)
