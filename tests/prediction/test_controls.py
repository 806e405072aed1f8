"""Controls predict what they say, at the rates they say, for the layer and token that they say."""

import numpy as np
import pytest

from workbench.errors import BadInput
from workbench.prediction import PREDICTORS, PassFuture, PredictorSettings, RouteShape, make_predictor
from workbench.prediction.future import TokenFuture
from workbench.scheduling import Priority, Scope
from workbench.simulate.events import route_frame

SHAPE = RouteShape(num_layers=2, num_experts=64, top_k=2)


def decode(position, request=0, num_tokens=1):
    return Scope(request, "decode", position, num_tokens)


def keys(predicted):
    return [each.key for each in predicted]


def test_the_previous_token_predicts_the_layer_ahead():
    before = make_predictor("previous_token", SHAPE, PredictorSettings())
    assert keys(before.look(decode(0), 0, {"ids": np.array([[0, 1]])})) == []
    for layer, used in ((0, [0, 1]), (1, [64, 65])):
        before.committed(decode(0), layer, [used])
    assert keys(before.look(decode(1), 0, {"ids": np.array([[3, 2]])})) == [64, 65], "what layer 1 used for the token before"
    assert keys(before.look(decode(1), 1, {"ids": np.array([[5, 6]])})) == [3, 2], "for the next token: what layer 0 uses now"
    assert keys(before.look(decode(1, request=7), 0, {"ids": np.array([[0, 1]])})) == [], "requests know nothing of each other"


def test_the_previous_token_of_a_block_is_the_last_committed_one():
    before = make_predictor("previous_token", SHAPE, PredictorSettings())
    before.committed(decode(0, num_tokens=4), 1, np.array([[64, 65], [66, 67]]))
    assert keys(before.look(decode(2), 0, {"ids": np.array([[0, 1]])})) == [66, 67]


def test_the_next_layer_is_all_of_it_and_none_behind_the_last():
    whole = make_predictor("next_layer", SHAPE, PredictorSettings(lead_layers=5))
    assert keys(whole.look(decode(0), 0, {})) == list(range(64, 128))
    assert whole.look(decode(0), 1, {}) == []
    assert whole.priority is Priority.P2


PASSES = [(0, position, [[position, position + 1], [64 + position, 65 + position]]) for position in range(5)]


@pytest.mark.parametrize(("lead", "layer", "wanted"), [(1, 0, [66, 67]), (1, 1, [3, 4]), (2, 0, [3, 4]), (3, 1, [4, 5])])
def test_an_oracle_knows_the_pass_ahead(lead, layer, wanted):
    oracle = make_predictor("oracle", SHAPE, PredictorSettings(lead_layers=lead), PassFuture(PASSES))
    assert keys(oracle.look(decode(2), layer, {})) == wanted
    assert oracle.priority is (Priority.P1 if lead == 1 else Priority.P2)


def test_an_oracle_knows_nothing_behind_the_end():
    oracle = make_predictor("oracle", SHAPE, PredictorSettings(), PassFuture(PASSES))
    assert keys(oracle.look(decode(4), 0, {})) == [68, 69]
    assert oracle.look(decode(4), 1, {}) == []


def test_a_recorded_future_knows_a_block_as_the_union_of_its_tokens():
    routes = np.array([[[[token, token + 1], [token, token + 2]] for token in range(6)]])
    future = TokenFuture(route_frame(routes, family="x"), SHAPE)
    oracle = make_predictor("oracle", SHAPE, PredictorSettings(), future)
    assert keys(oracle.look(decode(1, num_tokens=2), 0, {})) == [65, 67, 66, 68], "this block's layer 1"
    assert keys(oracle.look(decode(1, num_tokens=2), 1, {})) == [3, 4, 5], "layer 0 of a block as long, behind it"
    with pytest.raises(BadInput, match="have no request 1"):
        oracle.look(decode(0, request=1), 0, {})
    assert oracle.look(decode(0, request=-1), 0, {}) == [], "a warm-up is no request"


def test_a_noisy_oracle_forgets_and_errs_at_its_rates():
    passes = [(0, position, [list(range(64 * layer, 64 * layer + 8)) for layer in (0, 1)]) for position in range(500)]
    settings = PredictorSettings(recall=0.6, precision=0.75, seed=3)
    oracle = make_predictor("noisy_oracle", SHAPE, settings, PassFuture(passes))
    hits = asked = 0
    for position in range(499):
        for layer in (0, 1):
            target = 1 - layer
            predicted = set(keys(oracle.look(decode(position), layer, {})))
            assert {key // 64 for key in predicted} <= {target}
            hits, asked = hits + len(predicted & set(passes[0][2][target])), asked + len(predicted)
    assert hits / (8 * 2 * 499) == pytest.approx(0.6, abs=0.02)
    # strangers that are needed after all are dropped, so the share is a little higher
    assert 0.73 < hits / asked < 0.79


def test_unknown_names_and_oracles_without_a_future_are_refused():
    with pytest.raises(BadInput, match="did you mean previous_token"):
        make_predictor("previos_token", SHAPE, PredictorSettings())
    for name in ("oracle", "noisy_oracle"):
        assert name in PREDICTORS
        with pytest.raises(BadInput, match="needs recorded routes of the same prompts"):
            make_predictor(name, SHAPE, PredictorSettings())
