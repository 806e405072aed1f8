"""Route traces: one row per token and layer, with the native router's choice in rank order."""

from pathlib import Path
from typing import Any

import polars as pl

from workbench.errors import BadInput
from workbench.schema.parquet import write_parquet

ROUTES_VERSION = 1

ROUTE_SCHEMA: dict[str, Any] = {
    "request": pl.Int32,
    # prompt family, e.g. python
    "family": pl.String,
    # train | held_out
    "split": pl.String,
    # prefill | decode
    "phase": pl.String,
    "position": pl.Int32,
    "layer": pl.Int16,
    "token_id": pl.Int32,
    # top-k ids, highest weight first
    "experts": pl.List(pl.Int16),
    # their normalised router weights
    "weights": pl.List(pl.Float32),
}
"""Columns of a route trace. `token_id` is the token at `position` (the one being processed)."""


def write_routes(frame: pl.DataFrame, path: Path, *, num_layers: int, num_experts: int, top_k: int) -> None:
    """Writes a route trace with the geometry it belongs to, atomically. Raises BadInput on a wrong schema."""
    if dict(frame.schema) != ROUTE_SCHEMA:
        raise BadInput(f"not a route trace: columns {frame.schema}")
    metadata = {
        "routes_version": str(ROUTES_VERSION),
        "num_layers": str(num_layers),
        "num_experts": str(num_experts),
        "top_k": str(top_k),
    }
    write_parquet(frame, path, metadata)


def read_routes(path: Path) -> tuple[pl.DataFrame, dict[str, int]]:
    """A route trace and its geometry (`num_layers`, `num_experts`, `top_k`).

    Raises BadInput on another version, other columns, or ids outside the geometry.
    """
    try:
        metadata = pl.read_parquet_metadata(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise BadInput(f"{path}: not a readable parquet file ({error})") from None
    if metadata.get("routes_version") != str(ROUTES_VERSION):
        raise BadInput(f"{path}: routes version {metadata.get('routes_version')}, this workbench reads {ROUTES_VERSION}")
    geometry = {name: int(metadata[name]) for name in ("num_layers", "num_experts", "top_k")}
    frame = pl.read_parquet(path)
    if dict(frame.schema) != ROUTE_SCHEMA:
        raise BadInput(f"{path}: columns differ from routes version {ROUTES_VERSION}")
    ids = frame.get_column("experts")
    if frame.height and (ids.list.len() != geometry["top_k"]).any():
        raise BadInput(f"{path}: a row does not have {geometry['top_k']} experts")
    if frame.height and _outside(ids, geometry["num_experts"]):
        raise BadInput(f"{path}: an expert id is outside 0..{geometry['num_experts'] - 1}")
    return frame, geometry


def _outside(ids: pl.Series, num_experts: int) -> bool:
    flat = ids.explode()
    return bool(((flat < 0) | (flat >= num_experts)).any())
