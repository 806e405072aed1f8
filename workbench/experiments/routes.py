"""Routes of live runs as route traces: the experts that the native router chose for committed tokens."""

import numpy as np
import polars as pl

from workbench.geometry import Geometry
from workbench.scheduling.ticket import Scope
from workbench.schema import ROUTE_SCHEMA, RunFolder, write_routes

ROUTES_NAME = "routes.parquet"
"""Name of a route trace in a run's artifacts."""


class RouteRecorder:
    """Collects the rows of one request's routes."""

    def __init__(self, family: str, split: str) -> None:
        """`family` and `split`: those of the prompt, for the trace's columns of these names."""
        self._family, self._split = family, split
        self._passes: list[tuple[Scope, int, np.ndarray, np.ndarray, np.ndarray]] = []

    def record(self, scope: Scope, layer: int, tokens: np.ndarray, ids: np.ndarray, weights: np.ndarray) -> None:
        """A `RouteSink`: records the committed tokens of one layer of one pass."""
        self._passes.append((scope, layer, tokens, ids.astype(np.int16), weights.astype(np.float32)))

    def frame(self) -> pl.DataFrame:
        """Everything recorded, in `ROUTE_SCHEMA`, by position and layer."""
        frames = [pl.DataFrame(schema=ROUTE_SCHEMA), *(self._rows(*each) for each in self._passes)]
        return pl.concat(frames).sort("position", "layer", maintain_order=True)

    def _rows(self, scope: Scope, layer: int, tokens: np.ndarray, ids: np.ndarray, weights: np.ndarray) -> pl.DataFrame:
        num_tokens = len(tokens)
        return pl.DataFrame(
            {
                "request": [scope.request] * num_tokens,
                "family": [self._family] * num_tokens,
                "split": [self._split] * num_tokens,
                "phase": [scope.phase] * num_tokens,
                "position": np.arange(scope.position, scope.position + num_tokens),
                "layer": [layer] * num_tokens,
                "token_id": tokens,
                "experts": ids.tolist(),
                "weights": weights.tolist(),
            },
            schema=ROUTE_SCHEMA,
        )


def write_model_routes(frame: pl.DataFrame, folder: RunFolder, geometry: Geometry) -> None:
    """Writes a route trace of a model into a run's artifacts."""
    write_routes(
        frame,
        folder.artifacts / ROUTES_NAME,
        num_layers=geometry.num_hidden_layers,
        num_experts=geometry.num_experts,
        top_k=geometry.num_experts_per_tok,
    )
