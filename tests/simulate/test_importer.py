"""Foreign traces come in whole or are refused in one line that says where."""

import json

import polars as pl
import pytest

from workbench.errors import BadInput
from workbench.schema import ROUTE_SCHEMA
from workbench.simulate.importer import import_routes

GEOMETRY = {"num_layers": 2, "num_experts": 8, "top_k": 3}


def rows():
    return [
        {"request": request, "position": position, "layer": layer, "ids": [request, 3 + layer, 7 - position]}
        for request in (0, 1)
        for position in (0, 1)
        for layer in (1, 0)
    ]


def write(folder, content, name="foreign.jsonl"):
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in content))
    return path


def changed(index, **columns):
    content = rows()
    content[index] = content[index] | columns
    return content


def test_json_lines_and_parquet_give_the_same_routes(tmp_path):
    routes = import_routes(write(tmp_path, rows()), **GEOMETRY)
    pl.DataFrame(rows()).write_parquet(tmp_path / "foreign.parquet")
    assert routes.equals(import_routes(tmp_path / "foreign.parquet", **GEOMETRY))
    assert dict(routes.schema) == ROUTE_SCHEMA
    assert routes.row(0, named=True) == {
        "request": 0,
        "family": "foreign",
        "split": "held_out",
        "phase": "decode",
        "position": 0,
        "layer": 0,
        "token_id": -1,
        "experts": [0, 3, 7],
        "weights": [pytest.approx(1 / 3)] * 3,
    }
    assert routes["layer"].to_list() == [0, 1] * 4


def test_optional_columns_are_kept(tmp_path):
    more = [row | {"phase": "prefill", "family": "prose", "token_id": 9, "weights": [0.5, 0.3, 0.2]} for row in rows()]
    routes = import_routes(write(tmp_path, more), **GEOMETRY)
    assert routes["phase"].unique().to_list() == ["prefill"]
    assert routes["family"].unique().to_list() == ["prose"]
    assert routes["token_id"].unique().to_list() == [9]
    assert routes["weights"][0].to_list() == pytest.approx([0.5, 0.3, 0.2])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (changed(2, layer=2), r"foreign.jsonl, row 3: layer lies outside 0..1 \(1 of 8 rows\)"),
        (changed(0, request=-1), "row 1: request lies outside"),
        (changed(0, position=2**31), "row 1: position lies outside"),
        (changed(5, ids=[1, 2]), "row 6: ids does not name 3 experts"),
        (changed(5, ids=[1, 2, 2]), "row 6: ids names an expert twice"),
        (changed(7, ids=[1, 2, 8]), "row 8: an expert id is outside 0..7"),
        (changed(7, ids=[1, 2, -1]), "row 8: an expert id is outside 0..7"),
        (changed(7, ids=[1, 2, None]), "row 8: ids contains a null"),
        (changed(1, ids=None), "row 2: ids is missing"),
        (changed(1, request=None), "row 2: request is missing"),
        (changed(1, layer=0.5), "column 'layer' must hold whole numbers"),
        ([row | {"ids": "1,2,3"} for row in rows()], "column 'ids' must hold lists of whole numbers"),
        ([row | {"phase": "warm"} for row in rows()], "row 1: phase is none of prefill, decode, verify"),
        ([row | {"weights": [1.0]} for row in rows()], "row 1: weights and ids differ in length"),
        ([row | {"weights": [0.5, 0.7, -0.2]} for row in rows()], "row 1: a weight lies outside 0..1"),
        ([row | {"token_id": -5} for row in rows()], "row 1: token_id lies outside"),
        ([row | {"gate": 1} for row in rows()], "unknown column 'gate'"),
        ([{"request": 0, "position": 0, "layer": 0}], "column 'ids' is missing"),
        (rows()[:-1], "request 1, position 1 has 1 rows for 1 of 2 layers"),
        ([*rows(), rows()[0]], "request 0, position 0 has 3 rows for 2 of 2 layers"),
        ([row | {"position": 2 * row["position"]} for row in rows()], r"has 2 tokens at positions 0..2: some are missing"),
    ],
)
def test_flaws_are_named_with_their_place(tmp_path, content, message):
    with pytest.raises(BadInput, match=message):
        import_routes(write(tmp_path, content), **GEOMETRY)


def test_files_that_are_no_traces_are_refused(tmp_path):
    with pytest.raises(BadInput, match="no such file"):
        import_routes(tmp_path / "none.jsonl", **GEOMETRY)
    with pytest.raises(BadInput, match=r"is a .parquet or .jsonl file"):
        import_routes(tmp_path / "trace.csv", **GEOMETRY)
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 but no more")
    with pytest.raises(BadInput, match="not a readable parquet file"):
        import_routes(tmp_path / "broken.parquet", **GEOMETRY)
    (tmp_path / "broken.jsonl").write_text('{"request": 1,\n')
    with pytest.raises(BadInput, match="not a readable JSON Lines file"):
        import_routes(tmp_path / "broken.jsonl", **GEOMETRY)
    pl.DataFrame(schema={"request": pl.Int64, "position": pl.Int64, "layer": pl.Int64, "ids": pl.List(pl.Int64)}).write_parquet(
        tmp_path / "empty.parquet"
    )
    with pytest.raises(BadInput, match="the trace is empty"):
        import_routes(tmp_path / "empty.parquet", **GEOMETRY)


def test_columns_that_begin_late_are_kept(tmp_path):
    """Types and columns follow from all rows, not from the first hundred."""
    many = [row | {"request": 0, "position": 2 * n + row["position"]} for n in range(80) for row in rows() if row["request"] == 0]
    late = [row | ({"phase": "decode", "weights": [0.5, 0.3, 0.2]} if n >= 150 else {}) for n, row in enumerate(many)]
    with pytest.raises(BadInput, match=r"row 1: phase is missing \(150 of 320 rows\)"):
        import_routes(write(tmp_path, late), **GEOMETRY)
