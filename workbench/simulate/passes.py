"""Passes: what the runtime would run one after another, as a route trace says it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import polars as pl


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """A tile of prompt tokens, one decoded token, or a block that is verified at once."""

    request: int
    phase: str
    position: int
    """Of its first token."""
    num_tokens: int
    """Tokens that it commits."""
    keys: tuple[tuple[int, ...], ...]
    """By layer, the records it needs together."""
    pages: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """By PLE layer, the n-gram pages it needs."""


def passes(frame: pl.DataFrame, num_experts: int, *, tile: int) -> Iterator[Pass]:
    """Passes of a route trace, request by request; prompt tokens in tiles of `tile`, whose needs are their union."""
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

    Each pass needs the union of its token and `drafts` more, and commits 1 to 1 + `drafts` of them, `committed` on average;
    rejected drafts are taken to want what the accepted token in their place wants.
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
    """By layer, the distinct records of `keys [tokens, layers, top_k]`, in the order of their first use."""
    needed = keys.transpose(1, 0, 2).reshape(keys.shape[1], -1)
    return tuple(tuple(dict.fromkeys(row)) for row in needed.tolist())


def in_turns(whole: Sequence[Pass], num_turns: int) -> list[Pass]:
    """The passes of each request in `num_turns` parts, and the requests taking turns, as agents that wait for tools do."""
    by_request: dict[int, list[Pass]] = {}
    for each in whole:
        by_request.setdefault(each.request, []).append(each)
    ordered = []
    for turn in range(num_turns):
        for own in by_request.values():
            ordered += own[turn * len(own) // num_turns : (turn + 1) * len(own) // num_turns]
    return ordered
