"""What all tests share: planted route traces, and no filing in MLflow."""

import os

import numpy as np
import polars as pl
import pytest

from workbench.schema import ROUTE_SCHEMA, write_routes

# importing MLflow and making a store takes seconds; the tests of tracking ask for it
os.environ.setdefault("WORKBENCH_TRACKING", "off")


@pytest.fixture(scope="session")
def write_trace():
    """Writes routes `[requests, tokens, layers, top_k]` as a trace whose first `prompt` tokens are prefill; returns its path."""

    def write(path, routes, *, num_experts=128, prompt=2, split="held_out"):
        requests, length, layers, top_k = routes.shape
        rows = requests * length * layers
        position = np.tile(np.repeat(np.arange(length), layers), requests)
        frame = pl.DataFrame(
            {
                "request": np.repeat(np.arange(requests), length * layers),
                "family": ["prose"] * rows,
                "split": [split] * rows,
                "phase": np.where(position < prompt, "prefill", "decode"),
                "position": position,
                "layer": np.tile(np.arange(layers), requests * length),
                "token_id": np.zeros(rows, dtype=np.int32),
                "experts": routes.reshape(rows, top_k).tolist(),
                "weights": np.full((rows, top_k), 1 / top_k).tolist(),
            },
            schema=ROUTE_SCHEMA,
        )
        write_routes(frame, path, num_layers=layers, num_experts=num_experts, top_k=top_k)
        return path

    return write
