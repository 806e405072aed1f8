import numpy as np
import polars as pl
import pytest

from workbench.analysis.routes import routes_of
from workbench.errors import BadInput
from workbench.schema import ROUTE_SCHEMA


def frame(tokens, *, layers=2, split="held_out"):
    """Rows for `(request, position, phase, experts)`; layer 1 selects the same ids plus one."""
    rows = [
        {
            "request": request,
            "family": "prose",
            "split": split,
            "phase": phase,
            "position": position,
            "layer": layer,
            "token_id": 7,
            "experts": [(e + layer) % 8 for e in experts],
            "weights": [0.5] * len(experts),
        }
        for request, position, phase, experts in tokens
        for layer in range(layers)
    ]
    return pl.DataFrame(rows, schema=ROUTE_SCHEMA)


TOKENS = [(3, 0, "prefill", [0, 1]), (3, 1, "decode", [1, 2]), (5, 4, "decode", [6, 7]), (5, 5, "decode", [6, 0])]


def test_arrays_follow_requests_positions_and_layers_whatever_the_row_order():
    routes = routes_of(frame(TOKENS).sample(fraction=1.0, shuffle=True, seed=1), num_experts=8)
    assert routes.experts[:, 0].tolist() == [[0, 1], [1, 2], [6, 7], [6, 0]]
    assert routes.experts[:, 1].tolist() == [[1, 2], [2, 3], [7, 0], [7, 1]]
    assert routes.request.tolist() == [0, 0, 1, 1]
    assert routes.decoded.tolist() == [False, True, True, True]
    assert routes.bounds == [(0, 2), (2, 4)]
    assert routes.decoded_tokens.tolist() == [1, 2]
    assert routes.splits == ("held_out", "held_out")
    assert (routes.num_requests, routes.num_layers, routes.top_k, routes.num_records) == (2, 2, 2, 16)


def test_usage_counts_decoded_tokens_only():
    usage = routes_of(frame(TOKENS), num_experts=8).usage
    assert usage[0].tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0, 0, 0, 2 / 3, 1 / 3])
    assert usage.sum(axis=1).tolist() == pytest.approx([2, 2])


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([], "no rows"),
        ([(0, 0, "decode", [0, 1]), (0, 2, "decode", [0, 1])], "gap"),
        ([(0, 0, "decode", [0, 1]), (0, 1, "prefill", [0, 1])], "prompt token after"),
        ([(0, 0, "decode", [0, 1]), (9, 0, "prefill", [0, 1])], "request 9 .* no decoded token"),
    ],
)
def test_a_trace_that_cannot_be_analysed_is_refused(tokens, message):
    with pytest.raises(BadInput, match=message):
        routes_of(frame(tokens), num_experts=8)


def test_a_token_without_one_of_the_layers_is_refused():
    with pytest.raises(BadInput, match="each of its 2 layers"):
        routes_of(frame(TOKENS)[:-1], num_experts=8)
    swapped = frame(TOKENS).with_columns(layer=pl.Series(np.array([0, 1, 1, 1, 0, 0, 0, 1], dtype=np.int16)))
    with pytest.raises(BadInput, match="each of its 2 layers"):
        routes_of(swapped, num_experts=8)
