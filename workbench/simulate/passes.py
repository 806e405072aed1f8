"""Forward passes made from recorded or synthetic routes, in the order in which the runtime would run them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import polars as pl


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One forward pass: a tile of prompt tokens, one decoded token, or a block of drafts that is verified at once."""

    request: int
    phase: str
    position: int
    """Position of the pass's first token in its sequence."""
    num_tokens: int
    """Tokens that the pass commits."""
    keys: tuple[tuple[int, ...], ...]
    """Keys of the records that each layer needs together, by layer."""
    pages: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Keys of the n-gram pages that each PLE layer needs, by layer."""


def passes(frame: pl.DataFrame, num_experts: int, *, tile: int) -> Iterator[Pass]:
    """Passes of a route trace, request by request. Prompt tokens run in tiles of `tile`; a tile needs its tokens' records."""
    for (request,), rows in frame.sort("request", "position", "layer").group_by("request", maintain_order=True):
        num_layers = rows["layer"].n_unique()
        experts = np.stack(rows["experts"].to_list()).astype(np.int64)
        layers = rows["layer"].to_numpy()[:, None].astype(np.int64)
        keys = (layers * num_experts + experts).reshape(-1, num_layers, experts.shape[1])
        first = int(rows["position"][0])
        num_prompt = int((rows["phase"] == "prefill").sum()) // num_layers
        bounds = [*range(0, num_prompt, tile), *range(num_prompt, len(keys)), len(keys)]
        for start, end in pairwise(bounds):
            yield Pass(
                request=int(request),
                phase="prefill" if start < num_prompt else "decode",
                position=first + start,
                num_tokens=end - start,
                keys=_union(keys[start:end]),
            )


def blocks(keys: np.ndarray, *, drafts: int, committed: float) -> Iterator[Pass]:
    """Verify passes over the accepted tokens `keys [tokens, layers, top_k]` of one request.

    Each pass needs the records of 1 + `drafts` tokens and commits at least 1 and at most all of these tokens, `committed` on
    average. A rejected draft is assumed to need the records of the token that is accepted at its position.
    """
    start, owed = 0, 0.0
    while start + drafts < len(keys):
        owed += committed
        num_committed = min(int(owed + 1e-9), 1 + drafts)
        owed -= num_committed
        union = _union(keys[start : start + 1 + drafts])
        yield Pass(request=0, phase="decode", position=start, num_tokens=num_committed, keys=union)
        start += num_committed


def _union(keys: np.ndarray) -> tuple[tuple[int, ...], ...]:
    """The distinct record keys of `keys [tokens, layers, top_k]`, by layer, in the order of their first use."""
    needed = keys.transpose(1, 0, 2).reshape(keys.shape[1], -1)
    return tuple(tuple(dict.fromkeys(row)) for row in needed.tolist())


def in_turns(whole: Sequence[Pass], num_turns: int) -> list[Pass]:
    """Splits each request's passes into `num_turns` parts and alternates between requests, like agents that wait for tools."""
    by_request: dict[int, list[Pass]] = {}
    for each in whole:
        by_request.setdefault(each.request, []).append(each)
    ordered = []
    for turn in range(num_turns):
        for own in by_request.values():
            ordered += own[turn * len(own) // num_turns : (turn + 1) * len(own) // num_turns]
    return ordered
