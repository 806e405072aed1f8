"""Sums of each request for the measures of locality, made once so that resampling requests is cheap.

Shapes: R requests, L layers, K experts per token, E experts per layer, T decoded tokens of a request. All sums are over
decoded tokens. A token before the first decoded one (the prompt's last) counts as its predecessor, and prompt uses count as
earlier uses of a record; blocks hold decoded tokens only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from workbench.analysis.routes import Array, Routes

FIRST_USE = 0
"""Column of `LocalitySums.reuse` for uses of a record that the request had not used before."""


@dataclass(frozen=True, kw_only=True)
class LocalitySums:
    """Sums over the decoded tokens of each request; a measure is a ratio of two of them."""

    tokens: Array
    """`[R]` decoded tokens."""
    pairs: Array
    """`[R]` decoded tokens that have a predecessor."""
    overlap: Array
    """`[R, L]` experts shared with the predecessor."""
    blocks: Mapping[int, Array]
    """By block size: `[R]` sliding blocks."""
    unions: Mapping[int, Array]
    """By block size: `[R, L]` distinct experts over all blocks."""
    unique: Array
    """`[R, L]` distinct experts of the whole decode."""
    uses: Array
    """`[R, L, E]` times each expert was selected."""
    reuse: Array
    """`[R, D]` uses at each distance in tokens from the record's previous use; column 0 holds first uses."""


def locality_sums(routes: Routes, blocks: Sequence[int] = (2, 3, 4, 5)) -> LocalitySums:
    """The sums of every request of a trace."""
    parts = [_request_sums(routes.experts[a:b], routes.decoded[a:b], routes.num_experts, blocks) for a, b in routes.bounds]
    widest = max(len(part["reuse"]) for part in parts)
    reuse = np.stack([np.pad(part["reuse"], (0, widest - len(part["reuse"]))) for part in parts])
    stacked = {name: np.stack([part[name] for part in parts]) for name in parts[0] if name != "reuse"}
    return LocalitySums(
        tokens=stacked["tokens"],
        pairs=stacked["pairs"],
        overlap=stacked["overlap"],
        blocks={size: stacked[f"blocks_{size}"] for size in blocks},
        unions={size: stacked[f"union_{size}"] for size in blocks},
        unique=stacked["unique"],
        uses=stacked["uses"],
        reuse=reuse,
    )


def _request_sums(experts: Array, decoded: Array, num_experts: int, blocks: Sequence[int]) -> dict[str, Array]:
    chosen = np.zeros((*experts.shape[:2], num_experts), dtype=bool)
    np.put_along_axis(chosen, experts, True, axis=-1)
    follows = decoded[1:]
    shared = (chosen[1:] & chosen[:-1])[follows]
    mine = chosen[decoded]
    sums = {
        "tokens": np.array(len(mine)),
        "pairs": np.array(follows.sum()),
        "overlap": shared.sum(axis=(0, 2)),
        "unique": mine.any(axis=0).sum(axis=-1),
        "uses": mine.sum(axis=0),
        "reuse": _reuse_histogram(experts, decoded, num_experts),
    }
    for size in blocks:
        union = _block_unions(mine, size)
        sums[f"union_{size}"] = union.sum(axis=(0, 2))
        sums[f"blocks_{size}"] = np.array(len(union))
    return sums


def _block_unions(chosen: Array, size: int) -> Array:
    """`[T - size + 1, L, E]`: the experts of each sliding block."""
    count = max(len(chosen) - size + 1, 0)
    union = chosen[:count].copy()
    for offset in range(1, size):
        union |= chosen[offset : offset + count]
    return union


def _reuse_histogram(experts: Array, decoded: Array, num_experts: int) -> Array:
    num_tokens, num_layers, _ = experts.shape
    last_use = np.full((num_layers, num_experts), -1)
    rows = np.arange(num_layers)[:, None]
    histogram = np.zeros(num_tokens + 1, dtype=np.int64)
    for token in range(num_tokens):
        before = last_use[rows, experts[token]]
        if decoded[token]:
            distance = np.where(before < 0, FIRST_USE, token - before)
            histogram += np.bincount(distance.ravel(), minlength=num_tokens + 1)
        last_use[rows, experts[token]] = token
    return histogram
