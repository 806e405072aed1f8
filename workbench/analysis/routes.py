"""Route traces as arrays. Shapes: N tokens, L layers, K experts per token, E experts per layer, R requests."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from workbench.errors import BadInput

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Routes:
    """A route trace in the order of its requests and positions; prompt tokens come before decoded ones."""

    experts: Array
    """`[N, L, K]` expert ids in rank order."""
    request: Array
    """`[N]` index of the token's request, 0 .. R-1, ascending."""
    decoded: Array
    """`[N]` true where the token was processed by decode, not prefill."""
    layers: tuple[int, ...]
    """Zero-based indices of the L layers."""
    num_experts: int
    """E, experts per layer."""
    splits: tuple[str, ...]
    """`train` or `held_out`, one per request."""

    @property
    def num_requests(self) -> int:
        """R, number of requests."""
        return len(self.splits)

    @property
    def num_layers(self) -> int:
        """L, number of layers."""
        return self.experts.shape[1]

    @property
    def top_k(self) -> int:
        """K, experts per token and layer."""
        return self.experts.shape[2]

    @property
    def num_records(self) -> int:
        """Records of all layers, L x E."""
        return self.num_layers * self.num_experts

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """First token and token past the last of each request."""
        edges = np.searchsorted(self.request, np.arange(self.num_requests + 1))
        return list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))

    @property
    def decoded_tokens(self) -> Array:
        """`[R]` decoded tokens of each request."""
        return np.bincount(self.request[self.decoded], minlength=self.num_requests)

    @property
    def usage(self) -> Array:
        """`[L, E]` share of decoded tokens that selected the expert; each layer sums to K."""
        chosen = self.experts[self.decoded]
        columns = np.arange(self.num_layers)[None, :, None] * self.num_experts + chosen
        counts = np.bincount(columns.ravel(), minlength=self.num_records)
        return counts.reshape(self.num_layers, self.num_experts) / max(len(chosen), 1)

    def with_experts(self, experts: Array) -> "Routes":
        """A trace of the same tokens with other `experts` `[N, L, K]` (for a control)."""
        return replace(self, experts=experts)


def routes_of(frame: pl.DataFrame, *, num_experts: int) -> Routes:
    """Arrays of a route frame (`schema.ROUTE_SCHEMA`).

    Raises BadInput when the frame is empty, a token lacks a layer, positions have gaps, prefill follows decode,
    or a request has no decoded token.
    """
    if frame.is_empty():
        raise BadInput("the route trace has no rows")
    frame = frame.sort("request", "position", "layer")
    layers = tuple(frame.get_column("layer").unique().sort().to_list())
    if frame.height % len(layers) or (frame.get_column("layer").to_numpy().reshape(-1, len(layers)) != layers).any():
        raise BadInput(f"the route trace does not have each of its {len(layers)} layers for each token")
    experts = np.stack(frame.get_column("experts").to_list()).reshape(-1, len(layers), len(frame["experts"][0]))
    tokens = frame.gather_every(len(layers))
    ids, request = np.unique(tokens.get_column("request").to_numpy(), return_inverse=True)
    decoded = (tokens.get_column("phase") != "prefill").to_numpy()
    _check_order(request, tokens.get_column("position").to_numpy(), decoded)
    if missing := set(range(len(ids))) - set(request[decoded].tolist()):
        raise BadInput(f"request {ids[min(missing)]} of the route trace has no decoded token")
    firsts = np.searchsorted(request, np.arange(len(ids))).tolist()
    return Routes(
        experts=experts.astype(np.int32),
        request=request,
        decoded=decoded,
        layers=layers,
        num_experts=num_experts,
        splits=tuple(tokens.get_column("split").gather(firsts).to_list()),
    )


def _check_order(request: Array, position: Array, decoded: Array) -> None:
    same = np.diff(request) == 0
    if (np.diff(position)[same] != 1).any():
        raise BadInput("the route trace has a gap or a repeated token in its positions")
    if (np.diff(decoded.astype(int))[same] < 0).any():
        raise BadInput("the route trace has a prompt token after a decoded one")
