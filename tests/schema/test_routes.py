import contextlib
import math

import numpy as np
import polars as pl
import pytest

from workbench.errors import BadInput
from workbench.schema import ROUTE_SCHEMA, read_routes, write_routes

ROW = {
    "request": 0, "family": "prose", "split": "held_out", "phase": "decode", "position": 1, "layer": 0, "token_id": 7,
    "experts": [3, 1], "weights": [0.75, 0.25],
}  # fmt: skip


def frame_of(*changes):
    return pl.DataFrame([ROW | change for change in changes], schema=ROUTE_SCHEMA)


def write(path, frame, **shape):
    write_routes(frame, path, **({"num_layers": 1, "num_experts": 4, "top_k": 2} | shape))
    return path


def test_a_trace_comes_back_with_its_geometry(tmp_path):
    frame = frame_of({"phase": "prefill"}, {"position": 2, "experts": [0, 2]}, {"position": 3, "phase": "verify"})
    path = write(tmp_path / "routes.parquet", frame)
    read, shape = read_routes(path)
    assert read.equals(frame)
    assert shape == {"num_layers": 1, "num_experts": 4, "top_k": 2}


@pytest.mark.parametrize(
    ("change", "shape", "message"),
    [
        ({"experts": [3, 4]}, {}, r"outside 0\.\.3"),
        ({"experts": [-1, 0]}, {}, r"outside 0\.\.3"),
        ({"experts": [1]}, {}, "does not name 2 experts"),
        ({}, {"top_k": 3}, "does not name 3 experts"),
    ],
)
def test_ids_that_do_not_fit_the_geometry_are_refused(tmp_path, change, shape, message):
    path = write(tmp_path / "routes.parquet", frame_of({}, change), **shape)
    with pytest.raises(BadInput, match=message):
        read_routes(path)


def test_other_columns_are_refused_on_both_ways(tmp_path):
    frame = frame_of({}).drop("weights")
    with pytest.raises(BadInput, match="not a route trace"):
        write(tmp_path / "routes.parquet", frame)
    metadata = {"routes_version": "1", "num_layers": "1", "num_experts": "4", "top_k": "2"}
    frame.write_parquet(tmp_path / "routes.parquet", metadata=metadata)
    with pytest.raises(BadInput, match="columns differ"):
        read_routes(tmp_path / "routes.parquet")


@pytest.mark.parametrize("content", [None, b"", b"PAR1 this is no parquet PAR1"])
def test_files_that_are_no_trace_are_refused(tmp_path, content):
    path = tmp_path / "routes.parquet"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadInput, match=r"not a readable parquet file|no such file"):
        read_routes(path)


def damaged(row, **values):
    """A change of one row of a trace."""

    def change(frame):
        rows = frame.to_dicts()
        rows[row] |= values
        return pl.DataFrame(rows, schema=ROUTE_SCHEMA)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (damaged(3, weights=[0.5, math.nan]), "row 4: a weight lies outside 0..1 or is not finite"),
        (damaged(3, weights=[math.inf, 0.1]), "row 4: a weight lies outside 0..1"),
        (damaged(3, weights=[0.2, 0.8]), "row 4: weights increase"),
        (damaged(3, weights=[0.9, 0.9]), "row 4: the weights' sum is above 1"),
        (damaged(3, weights=[1.0]), "row 4: weights and experts differ in length"),
        (damaged(3, experts=[1, 1]), "row 4: experts names an expert twice"),
        (damaged(3, experts=[1, None]), "row 4: experts contains a null"),
        (damaged(3, experts=None), "row 4: experts is missing"),
        (damaged(3, request=None), "row 4: request is missing"),
        (damaged(3, layer=7), "row 4: layer lies outside 0..1"),
        (damaged(3, position=-1), "row 4: position lies outside"),
        (damaged(3, phase="dream"), "row 4: phase is none of"),
        (damaged(3, layer=0), "request 0, position 1 has 2 rows for 1 of 2 layers"),
        (lambda frame: pl.concat([frame, frame[:1]]), "request 0, position 0 has 3 rows for 2 of 2 layers"),
        (lambda frame: frame[1:], "request 0, position 0 has 1 rows for 1 of 2 layers"),
        (lambda frame: pl.concat([frame[:2], frame[4:]]), r"request 0 has 2 tokens at positions 0..2: some are missing"),
        (lambda frame: frame[:0], "the trace is empty"),
    ],
)
def test_a_trace_is_whole_or_refused_with_its_row(tmp_path, write_trace, change, message):
    routes = np.tile([1, 0], (1, 3, 2, 1))
    path = write_trace(tmp_path / "routes.parquet", routes, num_experts=4)
    frame, _ = read_routes(path)
    write_routes(change(frame), path, num_layers=2, num_experts=4, top_k=2)
    with pytest.raises(BadInput, match=message) as found:
        read_routes(path)
    assert len(str(found.value).splitlines()) == 1


@pytest.mark.parametrize("geometry", [(0, 4, 2), (2, 0, 2), (2, 4, 0), (2, 4, 5), (2, 40_000, 2), (40_000, 4, 2)])
def test_a_geometry_that_no_trace_can_have_is_refused(tmp_path, geometry):
    layers, experts, top_k = geometry
    with pytest.raises(BadInput, match="a route trace has 1 to 32768 layers"):
        write_routes(
            pl.DataFrame(schema=ROUTE_SCHEMA), tmp_path / "x.parquet", num_layers=layers, num_experts=experts, top_k=top_k
        )


def test_every_damaged_byte_is_an_error_in_one_line_or_changes_nothing_unseen(tmp_path, write_trace):
    path = write_trace(
        tmp_path / "routes.parquet", np.random.default_rng(1).permuted(np.tile(np.arange(4), (2, 9, 2, 1)), axis=-1)
    )
    sound = path.read_bytes()
    for offset in range(0, len(sound), 37):
        path.write_bytes(sound[:offset] + bytes([sound[offset] ^ 0xFF]) + sound[offset + 1 :])
        with contextlib.suppress(BadInput):
            read_routes(path)
    for length in range(0, len(sound), 61):
        path.write_bytes(sound[:length])
        with pytest.raises(BadInput):
            read_routes(path)
