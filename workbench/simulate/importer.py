"""Foreign route traces: parquet or JSON lines with `request, position, layer, ids`, checked strictly, into `ROUTE_SCHEMA`.

Each row is one layer of one token: `ids` lists the chosen experts, highest weight first. The columns `phase` (prefill or
decode), `family`, `token_id` and `weights` are optional. Any other column is an error: a trace is never read in part.
"""

from pathlib import Path
from typing import Any

import polars as pl

from workbench.errors import BadInput
from workbench.schema import ROUTE_SCHEMA
from workbench.simulate.events import NO_TOKEN

_REQUIRED = ("request", "position", "layer", "ids")
_OPTIONAL = ("phase", "family", "token_id", "weights")
_LARGEST = 2**31 - 1
_WHOLE_NUMBERS = ("request", "position", "layer", "token_id")


def import_routes(path: Path, *, num_layers: int, num_experts: int, top_k: int) -> pl.DataFrame:
    """Reads the trace at `path` (`.parquet` or `.jsonl`) as a route trace of the given geometry, split `held_out`.

    Defaults of missing columns: phase `decode`, family the file's stem, token id `NO_TOKEN`, equal weights. Raises BadInput,
    with file and row, on an incomplete trace: every token of a request needs every layer once, and positions no gaps.
    """
    frame = _read(path)
    _check_columns(frame, path)
    problems = {
        f"request lies outside 0..{_LARGEST}": ~pl.col("request").is_between(0, _LARGEST),
        f"position lies outside 0..{_LARGEST}": ~pl.col("position").is_between(0, _LARGEST),
        f"layer lies outside 0..{num_layers - 1}": ~pl.col("layer").is_between(0, num_layers - 1),
        f"ids does not name {top_k} experts": pl.col("ids").list.len() != top_k,
        "ids names an expert twice": pl.col("ids").list.n_unique() != pl.col("ids").list.len(),
        f"an id lies outside 0..{num_experts - 1}": (pl.col("ids").list.min() < 0) | (pl.col("ids").list.max() >= num_experts),
    }
    if "phase" in frame.columns:
        problems["phase is neither prefill nor decode"] = ~pl.col("phase").is_in(["prefill", "decode"])
    if "weights" in frame.columns:
        problems["weights and ids differ in length"] = pl.col("weights").list.len() != pl.col("ids").list.len()
        problems["a weight lies outside 0..1"] = ~pl.col("weights").list.eval(pl.element().is_between(0, 1)).list.all()
    if "token_id" in frame.columns:
        problems[f"token_id lies outside 0..{_LARGEST}"] = ~pl.col("token_id").is_between(0, _LARGEST)
    for problem, condition in problems.items():
        _refuse(frame, condition, path, problem)
    _check_whole(frame, path, num_layers)
    return _as_routes(frame, path.stem, top_k).sort("request", "position", "layer")


def _read(path: Path) -> pl.DataFrame:
    if path.suffix not in (".parquet", ".jsonl"):
        raise BadInput(f"{path}: a route trace is a .parquet or .jsonl file")
    try:
        return pl.read_parquet(path) if path.suffix == ".parquet" else pl.read_ndjson(path)
    except FileNotFoundError:
        raise BadInput(f"no such route trace: {path}") from None
    except (OSError, pl.exceptions.PolarsError) as error:
        raise BadInput(f"{path}: not readable as {path.suffix[1:]} ({str(error).splitlines()[0]})") from None


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
        _refuse(frame, pl.col(name).is_null(), path, f"{name} is missing")
        if isinstance(kind, pl.List):
            _refuse(frame, pl.col(name).list.eval(pl.element().is_null()).list.any(), path, f"{name} contains a null")
    if not frame.height:
        raise BadInput(f"{path}: the trace is empty")


def _kind_problem(name: str, kind: Any) -> str:
    """The type, in words, that column `name` must have; empty when `kind` is of that type."""
    if name in _WHOLE_NUMBERS:
        return "" if kind.is_integer() else "whole numbers"
    if name == "ids":
        return "" if isinstance(kind, pl.List) and kind.inner.is_integer() else "lists of whole numbers"
    if name == "weights":
        return "" if isinstance(kind, pl.List) and kind.inner.is_numeric() else "lists of numbers"
    return "" if kind == pl.String else "text"


def _refuse(frame: pl.DataFrame, condition: pl.Expr, path: Path, problem: str) -> None:
    rows = frame.with_row_index("row").filter(condition)
    if rows.height:
        raise BadInput(f"{path}, row {rows['row'][0] + 1}: {problem} ({rows.height} of {frame.height} rows)")


def _check_whole(frame: pl.DataFrame, path: Path, num_layers: int) -> None:
    tokens = frame.group_by("request", "position").agg(pl.col("layer").n_unique().alias("layers"), pl.len().alias("rows"))
    for request, position, layers, rows in tokens.filter(
        (pl.col("layers") != num_layers) | (pl.col("rows") != num_layers)
    ).rows():
        raise BadInput(f"{path}: request {request}, position {position} has {rows} rows for {layers} of {num_layers} layers")
    spans = tokens.group_by("request").agg(
        pl.col("position").min().alias("first"), pl.col("position").max().alias("last"), pl.len().alias("tokens")
    )
    gaps = spans.filter(pl.col("last") - pl.col("first") + 1 != pl.col("tokens")).sort("request")
    for request, first, last, count in gaps.rows():
        raise BadInput(f"{path}: request {request} has {count} tokens at positions {first}..{last}: some are missing")


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
