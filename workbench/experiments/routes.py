"""Routes of live runs as route traces: the experts that the native router chose for committed tokens."""

import numpy as np
import polars as pl

from workbench.geometry import Geometry
from workbench.scheduling.ticket import Scope
from workbench.schema import ROUTE_SCHEMA, RunFolder, write_routes

ROUTES_NAME = "routes.parquet"
"""Name of a route trace in a run's artifacts."""


_PASSES_PER_FRAME = 4096
"""Recorded layers of passes that become one frame: many small arrays take ten times the memory of their rows."""


class RouteRecorder:
    """Collects the rows of one request's routes."""

    def __init__(self, family: str, split: str) -> None:
        """`family` and `split`: those of the prompt, for the trace's columns of these names."""
        self._family, self._split = family, split
        self._passes: list[tuple[Scope, int, np.ndarray, np.ndarray, np.ndarray]] = []
        self._frames = [pl.DataFrame(schema=ROUTE_SCHEMA)]

    def record(self, scope: Scope, layer: int, tokens: np.ndarray, ids: np.ndarray, weights: np.ndarray) -> None:
        """A `RouteSink`: records the committed tokens of one layer of one pass."""
        self._passes.append((scope, layer, tokens, ids.astype(np.int16), weights.astype(np.float32)))
        if len(self._passes) == _PASSES_PER_FRAME:
            self._build()

    def frame(self) -> pl.DataFrame:
        """Everything recorded, in `ROUTE_SCHEMA`, by position and layer."""
        self._build()
        return pl.concat(self._frames).sort("position", "layer", maintain_order=True)

    def _build(self) -> None:
        """Puts the passes so far into one frame."""
        if not self._passes:
            return
        scopes, layers, tokens, ids, weights = zip(*self._passes, strict=True)
        counts = [len(each) for each in tokens]
        data = {
            "request": np.repeat([scope.request for scope in scopes], counts),
            "family": [self._family] * sum(counts),
            "split": [self._split] * sum(counts),
            "phase": np.repeat([scope.phase for scope in scopes], counts),
            "position": np.concatenate([scope.position + np.arange(n) for scope, n in zip(scopes, counts, strict=True)]),
            "layer": np.repeat(layers, counts),
            "token_id": np.concatenate(tokens),
            "experts": np.concatenate(ids),
            "weights": np.concatenate(weights),
        }
        self._frames.append(pl.DataFrame(data).cast(pl.Schema(ROUTE_SCHEMA)))
        self._passes.clear()


def write_model_routes(frame: pl.DataFrame, folder: RunFolder, geometry: Geometry) -> None:
    """Writes a route trace of a model into a run's artifacts."""
    write_routes(
        frame,
        folder.artifacts / ROUTES_NAME,
        num_layers=geometry.num_hidden_layers,
        num_experts=geometry.num_experts,
        top_k=geometry.num_experts_per_tok,
    )
