"""Planted route traces for Gate B."""

import pytest

from workbench.analysis.routes import routes_of
from workbench.schema import read_routes
from workbench.simulate import planted

SHAPE = {"num_layers": 1, "num_experts": 128, "top_k": 10}


@pytest.fixture(scope="session")
def traces(tmp_path_factory, write_trace):
    """Perfect locality in a full sample (40 held-out requests, 2 prompt and 128 decoded tokens each); none in a smaller one."""
    folder = tmp_path_factory.mktemp("traces")
    made = {
        "repeated": planted.repeated(num_requests=40, num_tokens=130, seed=3, **SHAPE),
        "independent": planted.independent(num_requests=16, num_tokens=50, seed=3, **SHAPE),
    }
    return {name: write_trace(folder / f"{name}.parquet", routes) for name, routes in made.items()}


@pytest.fixture
def repeated(traces):
    frame, shape = read_routes(traces["repeated"])
    return routes_of(frame, num_experts=shape["num_experts"])
