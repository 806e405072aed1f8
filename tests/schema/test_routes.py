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
    frame = frame_of({}, {"position": 2, "experts": [0, 2]})
    path = write(tmp_path / "routes.parquet", frame)
    read, shape = read_routes(path)
    assert read.equals(frame)
    assert shape == {"num_layers": 1, "num_experts": 4, "top_k": 2}


@pytest.mark.parametrize(
    ("change", "shape", "message"),
    [
        ({"experts": [3, 4]}, {}, r"outside 0\.\.3"),
        ({"experts": [-1, 0]}, {}, r"outside 0\.\.3"),
        ({"experts": [1]}, {}, "does not have 2 experts"),
        ({}, {"top_k": 3}, "does not have 3 experts"),
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
    with pytest.raises(BadInput, match="not a readable parquet file"):
        read_routes(path)
