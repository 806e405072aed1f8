"""Route traces: one row per token and layer, with the native router's choice in rank order."""

from pathlib import Path
from typing import Any

import polars as pl

from workbench.errors import BadInput
from workbench.schema.generated import GENERATION_PHASES
from workbench.schema.parquet import parquet_metadata, read_parquet, write_parquet

ROUTES_VERSION = 1

ROUTE_SCHEMA: dict[str, Any] = {
    "request": pl.Int32,
    # prompt family, e.g. python
    "family": pl.String,
    # train | held_out
    "split": pl.String,
    # prefill | decode | verify
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


PHASES = ("prefill", *GENERATION_PHASES)
"""Phases of a route trace's tokens."""
_LARGEST = 2**31 - 1
MAX_EXPERTS = MAX_LAYERS = 1 << 15
"""Most experts per layer, and layers, of a route trace: ids and layers are stored as int16."""
_SUM_TOLERANCE = 1e-2
"""Tolerance of a sum of router weights, which may have been rounded to bfloat16 (8 bits) before the trace was written."""


def write_routes(frame: pl.DataFrame, path: Path, *, num_layers: int, num_experts: int, top_k: int) -> None:
    """Writes a route trace with the geometry it belongs to, atomically. Raises BadInput on a wrong schema or geometry."""
    if dict(frame.schema) != ROUTE_SCHEMA:
        raise BadInput(f"not a route trace: columns {frame.schema}")
    check_geometry(path, num_layers=num_layers, num_experts=num_experts, top_k=top_k)
    metadata = {
        "routes_version": str(ROUTES_VERSION),
        "num_layers": str(num_layers),
        "num_experts": str(num_experts),
        "top_k": str(top_k),
    }
    write_parquet(frame, path, metadata)


def read_routes(path: Path) -> tuple[pl.DataFrame, dict[str, int]]:
    """A route trace and its geometry (`num_layers`, `num_experts`, `top_k`).

    Raises BadInput on another version, other columns, an impossible geometry, and on what `check_routes` refuses.
    """
    metadata = parquet_metadata(path)
    if metadata.get("routes_version") != str(ROUTES_VERSION):
        raise BadInput(f"{path}: routes version {metadata.get('routes_version')}, this workbench reads {ROUTES_VERSION}")
    try:
        geometry = {name: int(metadata[name]) for name in ("num_layers", "num_experts", "top_k")}
    except (KeyError, ValueError) as error:
        raise BadInput(f"{path}: its metadata lacks a geometry ({error})") from None
    num_layers, num_experts, top_k = geometry.values()
    check_geometry(path, num_layers=num_layers, num_experts=num_experts, top_k=top_k)
    frame = read_parquet(path)
    if dict(frame.schema) != ROUTE_SCHEMA:
        raise BadInput(f"{path}: columns differ from routes version {ROUTES_VERSION}")
    check_routes(frame, path, num_layers=num_layers, num_experts=num_experts, top_k=top_k)
    return frame, geometry


def check_geometry(path: Path, *, num_layers: int, num_experts: int, top_k: int) -> None:
    """Raises BadInput on a geometry that no route trace can have."""
    if not (0 < num_layers <= MAX_LAYERS and 0 < num_experts <= MAX_EXPERTS and 0 < top_k <= num_experts):
        raise BadInput(
            f"{path}: {num_layers} layers, {num_experts} experts, top-{top_k}: a route trace has 1 to {MAX_LAYERS} layers, "
            f"1 to {MAX_EXPERTS} experts, and a top-k of at most the experts"
        )


def check_routes(
    frame: pl.DataFrame, path: Path, *, num_layers: int, num_experts: int, top_k: int, experts: str = "experts"
) -> None:
    """Raises BadInput, with file and row, unless the columns of `frame` are a whole route trace of this geometry.

    Checked are those columns of `ROUTE_SCHEMA` that `frame` has; `experts` names the column of chosen experts. Every token of
    a request needs every layer once, and its positions have no gaps.
    """
    ids = pl.col(experts)
    _refuse_nulls(frame, path)
    problems = {
        f"request lies outside 0..{_LARGEST}": ~pl.col("request").is_between(0, _LARGEST),
        f"position lies outside 0..{_LARGEST}": ~pl.col("position").is_between(0, _LARGEST),
        f"layer lies outside 0..{num_layers - 1}": ~pl.col("layer").is_between(0, num_layers - 1),
        f"{experts} does not name {top_k} experts": ids.list.len() != top_k,
        f"{experts} names an expert twice": ids.list.n_unique() != ids.list.len(),
        f"an expert id is outside 0..{num_experts - 1}": (ids.list.min() < 0) | (ids.list.max() >= num_experts),
        f"phase is none of {', '.join(PHASES)}": ~pl.col("phase").is_in(PHASES),
        f"token_id lies outside -1..{_LARGEST}": ~pl.col("token_id").is_between(-1, _LARGEST),
    } | _weight_problems(ids)
    for problem, condition in problems.items():
        if set(condition.meta.root_names()) <= set(frame.columns):
            _refuse(frame, condition, path, problem)
    _check_whole(frame, path, num_layers)


def _weight_problems(ids: pl.Expr) -> dict[str, pl.Expr]:
    weights = pl.col("weights")
    inside = weights.list.eval(pl.element().is_finite() & pl.element().is_between(0, 1)).list.all()
    return {
        f"weights and {ids.meta.output_name()} differ in length": weights.list.len() != ids.list.len(),
        "a weight lies outside 0..1 or is not finite": ~inside,
        "weights increase: the chosen experts must be listed highest weight first": weights.list.diff().list.max() > 0,
        "the weights' sum is above 1": weights.list.sum() > 1 + _SUM_TOLERANCE,
    }


def _refuse_nulls(frame: pl.DataFrame, path: Path) -> None:
    for name, kind in frame.schema.items():
        _refuse(frame, pl.col(name).is_null(), path, f"{name} is missing")
        if isinstance(kind, pl.List):
            _refuse(frame, pl.col(name).list.eval(pl.element().is_null()).list.any(), path, f"{name} contains a null")


def _refuse(frame: pl.DataFrame, condition: pl.Expr, path: Path, problem: str) -> None:
    rows = frame.with_row_index("row").filter(condition)
    if rows.height:
        raise BadInput(f"{path}, row {rows['row'][0] + 1}: {problem} ({rows.height} of {frame.height} rows)")


def _check_whole(frame: pl.DataFrame, path: Path, num_layers: int) -> None:
    if not frame.height:
        raise BadInput(f"{path}: the trace is empty")
    tokens = frame.group_by("request", "position").agg(pl.col("layer").n_unique().alias("layers"), pl.len().alias("rows"))
    odd = tokens.filter((pl.col("layers") != num_layers) | (pl.col("rows") != num_layers)).sort("request", "position")
    for request, position, layers, rows in odd.rows():
        raise BadInput(f"{path}: request {request}, position {position} has {rows} rows for {layers} of {num_layers} layers")
    spans = tokens.group_by("request").agg(
        pl.col("position").min().alias("first"), pl.col("position").max().alias("last"), pl.len().alias("tokens")
    )
    gaps = spans.filter(pl.col("last") - pl.col("first") + 1 != pl.col("tokens")).sort("request")
    for request, first, last, count in gaps.rows():
        raise BadInput(f"{path}: request {request} has {count} tokens at positions {first}..{last}: some are missing")
