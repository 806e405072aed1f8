"""An oracle that knows a recorded trace: by request and position, whatever passes the tokens are decoded in."""

import numpy as np
import polars as pl
import pytest

from workbench.errors import BadInput
from workbench.prediction import PredictorSettings, make_predictor
from workbench.prediction.future import KnownRow, TokenFuture
from workbench.scheduling.ticket import PredictedKey, Scope
from workbench.schema import ROUTE_SCHEMA, write_routes
from workbench.simulate.events import route_frame

# [requests, tokens, layers, top_k]
ROUTES = np.array([[[[0, 1, 2], [3, 4, 5]], [[1, 2, 3], [5, 6, 7]], [[2, 9, 4], [8, 6, 5]]]] * 2)
ROUTES[1] += 1
FRAME = route_frame(ROUTES, family="toy")


def oracle(shape, frame=FRAME, name="oracle", **settings):
    return make_predictor(name, shape, PredictorSettings(**settings), TokenFuture(frame, shape))


def test_a_single_token(shape):
    future = TokenFuture(FRAME, shape)
    assert future.rows(Scope(1, "decode", 0), 1, 0) == [KnownRow(3, [20, 21, 22])]
    # behind the last layer comes the next position
    assert future.rows(Scope(0, "decode", 1), 0, 1) == [KnownRow(2, [2, 9, 4])]
    assert future.rows(Scope(0, "decode", 2), 0, 1) == []
    with pytest.raises(BadInput, match="have no request 9"):
        future.rows(Scope(9, "decode", 0), 0, 0)


def test_a_block_gets_the_union_of_its_rows_with_the_tokens_that_need_each_key(shape):
    block = Scope(0, "verify", 0, 2)
    assert oracle(shape).look(block, 0, {}) == [
        PredictedKey(19, 1.0, 0b01),
        PredictedKey(20, 1.0, 0b01),
        PredictedKey(21, 1.0, 0b11),
        PredictedKey(22, 1.0, 0b10),
        PredictedKey(23, 1.0, 0b10),
    ]
    # of the block behind it only the first token is known
    assert oracle(shape).look(block, 1, {}) == [PredictedKey(2), PredictedKey(9), PredictedKey(4)]


@pytest.mark.parametrize("name", ["oracle", "noisy_oracle"])
def test_the_length_of_passes_changes_no_prediction_for_a_token(name, shape):
    noise = {"recall": 0.5, "precision": 0.5, "seed": 2} if name == "noisy_oracle" else {}
    predictor = oracle(shape, name=name, **noise)
    by_token = [{each.key for each in predictor.look(Scope(0, "decode", position), 0, {})} for position in range(3)]
    block = predictor.look(Scope(0, "verify", 0, 3), 0, {})
    assert len(block) == len({each.key for each in block})
    assert [{each.key for each in block if each.token_mask >> token & 1} for token in range(3)] == by_token


def test_the_order_of_rows_in_the_trace_does_not_matter(shape):
    scope = Scope(0, "decode", 0)
    assert oracle(shape, FRAME.reverse()).look(scope, 0, {}) == oracle(shape).look(scope, 0, {})


@pytest.mark.parametrize(
    "frame",
    [pl.DataFrame(schema=ROUTE_SCHEMA), FRAME[1:], pl.concat([FRAME, FRAME[:2]]), FRAME.filter(layer=0)],
    ids=["no token", "a layer is missing", "a token twice", "one layer"],
)
def test_a_trace_of_broken_tokens_is_refused(frame, shape):
    with pytest.raises(BadInput, match="an oracle needs each of 2 layers once per token"):
        TokenFuture(frame, shape)


def test_the_settings_name_the_trace(shape, tmp_path):
    path = tmp_path / "routes.parquet"
    write_routes(FRAME, path, num_layers=2, num_experts=16, top_k=3)
    predictor = make_predictor("oracle", shape, PredictorSettings(routes=str(path)))
    assert [each.key for each in predictor.look(Scope(0, "decode", 0), 0, {})] == [19, 20, 21]


def test_traces_that_can_not_be_used_are_refused_in_one_line(shape, tmp_path):
    def refusal(path):
        with pytest.raises(BadInput) as refused:
            make_predictor("oracle", shape, PredictorSettings(routes=str(path)))
        assert "\n" not in str(refused.value)
        assert str(path) in str(refused.value)
        return str(refused.value)

    assert "no such file" in refusal(tmp_path / "none.parquet")
    write_routes(FRAME, tmp_path / "other.parquet", num_layers=2, num_experts=32, top_k=3)
    assert "routes of another model" in refusal(tmp_path / "other.parquet")
    write_routes(FRAME[1:], tmp_path / "broken.parquet", num_layers=2, num_experts=16, top_k=3)
    assert "has 1 rows for 1 of 2 layers" in refusal(tmp_path / "broken.parquet")
