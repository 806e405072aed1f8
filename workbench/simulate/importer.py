"""Foreign route traces: parquet or JSON lines with `request, position, layer, ids`, checked strictly, into `ROUTE_SCHEMA`.

Each row is one layer of one token: `ids` lists the chosen experts, highest weight first. The columns `phase` (prefill, decode or
verify), `family`, `token_id` and `weights` are optional. Any other column is an error: a trace is never read in part.
"""

from pathlib import Path
from typing import Any

import polars as pl

from workbench.errors import BadInput
from workbench.schema import ROUTE_SCHEMA
from workbench.schema.parquet import read_json_lines, read_parquet
from workbench.schema.routes import check_geometry, check_routes
from workbench.simulate.events import NO_TOKEN

_REQUIRED = ("request", "position", "layer", "ids")
_OPTIONAL = ("phase", "family", "token_id", "weights")
_WHOLE_NUMBERS = ("request", "position", "layer", "token_id")


def import_routes(path: Path, *, num_layers: int, num_experts: int, top_k: int) -> pl.DataFrame:
    """Reads the trace at `path` (`.parquet` or `.jsonl`) as a route trace of the given geometry, split `held_out`.

    Defaults of missing columns: phase `decode`, family the file's stem, token id `NO_TOKEN`, equal weights. Raises BadInput,
    with file and row, on an incomplete trace: every token of a request needs every layer once, and positions no gaps.
    """
    check_geometry(path, num_layers=num_layers, num_experts=num_experts, top_k=top_k)
    frame = _read(path)
    _check_columns(frame, path)
    check_routes(frame, path, num_layers=num_layers, num_experts=num_experts, top_k=top_k, experts="ids")
    return _as_routes(frame, path.stem, top_k).sort("request", "position", "layer")


def _read(path: Path) -> pl.DataFrame:
    if path.suffix not in (".parquet", ".jsonl"):
        raise BadInput(f"{path}: a route trace is a .parquet or .jsonl file")
    return read_parquet(path) if path.suffix == ".parquet" else read_json_lines(path)


def _check_columns(frame: pl.DataFrame, path: Path) -> None:
    for name in _REQUIRED:
        if name not in frame.columns:
            raise BadInput(f"{path}: column {name!r} is missing; a route trace has {', '.join(_REQUIRED)}")
    for name, kind in frame.schema.items():
        if name not in _REQUIRED + _OPTIONAL:
            raise BadInput(f"{path}: unknown column {name!r}; known are {', '.join(_REQUIRED + _OPTIONAL)}")
        expected = _kind_problem(name, kind)
        if expected:
            raise BadInput(f"{path}: column {name!r} must hold {expected}, not {kind}")


def _kind_problem(name: str, kind: Any) -> str:
    """The type, in words, that column `name` must have; empty when `kind` is of that type."""
    if name in _WHOLE_NUMBERS:
        return "" if kind.is_integer() else "whole numbers"
    if name == "ids":
        return "" if isinstance(kind, pl.List) and kind.inner.is_integer() else "lists of whole numbers"
    if name == "weights":
        return "" if isinstance(kind, pl.List) and kind.inner.is_numeric() else "lists of numbers"
    return "" if kind == pl.String else "text"


def _as_routes(frame: pl.DataFrame, family: str, top_k: int) -> pl.DataFrame:
    defaults = {
        "family": pl.lit(family),
        "phase": pl.lit("decode"),
        "token_id": pl.lit(NO_TOKEN),
        "weights": pl.lit([1 / top_k] * top_k),
        "split": pl.lit("held_out"),
    }
    missing = [value.alias(name) for name, value in defaults.items() if name not in frame.columns]
    renamed = frame.rename({"ids": "experts"}).with_columns(missing)
    return renamed.select(ROUTE_SCHEMA.keys()).cast(pl.Schema(ROUTE_SCHEMA))
