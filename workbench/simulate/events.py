"""Converts route arrays `[requests, tokens, layers, top_k]` to route traces, and both to the events that caches replay."""

import numpy as np
import polars as pl

from workbench.schema import ROUTE_SCHEMA

NO_TOKEN = -1
"""`token_id` of a row whose token is not known."""


def route_frame(routes: np.ndarray, *, family: str, split: str = "held_out") -> pl.DataFrame:
    """The route trace of expert ids `routes [requests, tokens, layers, top_k]`: all decoded tokens, equal weights."""
    num_requests, num_tokens, num_layers, top_k = routes.shape
    request, position, layer = (axis.ravel() for axis in np.indices((num_requests, num_tokens, num_layers)))
    columns = {
        "request": request,
        "family": pl.repeat(family, len(request), eager=True),
        "split": pl.repeat(split, len(request), eager=True),
        "phase": pl.repeat("decode", len(request), eager=True),
        "position": position,
        "layer": layer,
        "token_id": pl.repeat(NO_TOKEN, len(request), eager=True),
        "experts": pl.Series(routes.reshape(-1, top_k)).arr.to_list(),
        "weights": pl.Series(np.full((len(request), top_k), 1 / top_k, np.float32)).arr.to_list(),
    }
    return pl.DataFrame(columns).cast(pl.Schema(ROUTE_SCHEMA))


def route_events(frame: pl.DataFrame, num_experts: int) -> np.ndarray:
    """Events of a route trace, int64 `[tokens x layers, top_k]`: keys `layer * num_experts + expert`, ids in rank order.

    Events are sorted by request, position and layer: the order in which decoding needs their records.
    """
    ordered = frame.sort("request", "position", "layer")
    experts = np.stack(ordered.get_column("experts").to_list()) if len(ordered) else np.empty((0, 0), np.int64)
    return ordered.get_column("layer").to_numpy()[:, None].astype(np.int64) * num_experts + experts


def array_events(routes: np.ndarray, num_experts: int) -> np.ndarray:
    """Events of a route array `[requests, tokens, layers, top_k]`, with the keys and order of `route_events`."""
    num_layers, top_k = routes.shape[2:]
    return (routes.astype(np.int64) + np.arange(num_layers)[:, None] * num_experts).reshape(-1, top_k)
