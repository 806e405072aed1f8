"""Predictions by layer event, as the twin's prefetchers made them before there was one protocol (commit 33d1dda).

A layer event is one layer of one pass, in the order of a run; a prediction `lead` ahead is for the event of that distance.
"""

import numpy as np
import pytest

from workbench.prediction import PassFuture, PredictorSettings, RouteShape, make_predictor
from workbench.scheduling.ticket import PredictedKey, Scope
from workbench.simulate.synthetic import RouteModel, synthetic_routes

# 4 passes of 2 layers of 16 experts
PASSES = [(0, p, [[p, p + 1, p + 2], [16 + p, 19 + p]]) for p in range(4)]
LARGE = RouteShape(num_layers=6, num_experts=64, top_k=4)


def large_passes(num_requests=1):
    model = RouteModel(num_layers=6, num_experts=64, top_k=4, num_early_layers=1)
    routes = np.array(synthetic_routes(model, num_requests=num_requests, num_tokens=30, seed=1)).astype(np.int64)
    keys = (routes + np.arange(6)[:, None] * 64).tolist()
    return [(request, position, layers) for request, tokens in enumerate(keys) for position, layers in enumerate(tokens)]


def made(name, shape, passes=PASSES, **settings):
    return make_predictor(name, shape, PredictorSettings(**settings), PassFuture(passes))


def test_nothing_predicts_nothing(shape, drive):
    assert drive(made("nothing", shape), PASSES) == [[]] * 8


@pytest.mark.parametrize("lead", [1, 2, 5, 6])
def test_the_previous_token_names_what_the_layer_used_one_token_earlier(lead, drive):
    passes = large_passes()
    events = [keys for _, _, layers in passes for keys in layers]
    expected = [events[index + lead - 6] if index + lead >= 6 else [] for index in range(len(events))]
    assert drive(made("previous_token", LARGE, lead_layers=lead), passes) == expected


def test_the_previous_token_is_that_of_its_own_request(shape, drive):
    turns = [PASSES[0], (1, 7, [[9], [25]]), PASSES[1]]
    named = drive(made("previous_token", shape), turns)
    # layer 0 looks at layer 1 of its own pass, layer 1 at layer 0 of the next one
    assert named == [[], [0, 1, 2], [], [9], [16, 19], [1, 2, 3]]


def after_a_rejected_row(predictor):
    """The predictor after a pass of three tokens, the last of which was rejected; what it named for the token behind them."""
    scope = Scope(0, "verify", 5, 3)
    predictor.look(scope, 0, {"ids": np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]])})
    behind = predictor.look(scope, 1, {"ids": np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]])})
    predictor.committed(scope, 0, np.array([[1, 2, 3], [4, 5, 6]]))
    predictor.committed(scope, 1, np.array([[17, 18, 19], [20, 21, 22]]))
    return [each.key for each in behind]


def test_the_previous_token_of_a_pass_is_its_last_committed_one(shape):
    predictor = made("previous_token", shape)
    # the last token of the pass, while nothing is known of its acceptance
    assert after_a_rejected_row(predictor) == [7, 8, 9]
    named = predictor.look(Scope(0, "decode", 7), 0, {"ids": np.array([[1, 2, 3]])})
    assert named == [PredictedKey(20), PredictedKey(21), PredictedKey(22)]


def test_a_layer_of_the_next_token_that_was_not_routed_yet_is_predicted_from_committed_tokens(shape, drive):
    # three layers behind layer 0 is layer 1 of the next token
    assert drive(made("previous_token", shape, lead_layers=3), PASSES[:2]) == [[], [0, 1, 2], [16, 19], [1, 2, 3]]
    predictor = made("previous_token", shape, lead_layers=3)
    after_a_rejected_row(predictor)
    named = predictor.look(Scope(0, "decode", 7), 0, {"ids": np.array([[1, 2, 3]])})
    assert [each.key for each in named] == [20, 21, 22]


@pytest.mark.parametrize("name", ["oracle", "noisy_oracle"])
@pytest.mark.parametrize("lead", [1, 2, 13])
def test_an_oracle_names_what_is_needed_and_nothing_beyond_the_end(name, lead, drive):
    passes = large_passes(num_requests=2)
    events = [keys for _, _, layers in passes for keys in layers]
    assert drive(made(name, LARGE, passes, lead_layers=lead), passes) == events[lead:] + [[]] * lead


@pytest.mark.parametrize("lead", [1, 2])
def test_a_noisy_oracle_draws_as_it_always_did(lead, shape, drive):
    # from the twin's oracle of commit 33d1dda: recall 0.6, precision 0.5, seed 3, the same layer events
    of_events = [[16, 25, 19], [2, 3], [17, 16, 20], [3, 4], [18, 17], [3, 8, 4, 5], [19, 25]]
    noisy = made("noisy_oracle", shape, lead_layers=lead, recall=0.6, precision=0.5, seed=3)
    assert drive(noisy, PASSES) == of_events[lead - 1 :] + [[]] * lead
    assert {each.probability for each in noisy.look(Scope(0, "decode", 0), 0, {})} == {0.5}


def test_a_noisy_oracle_drops_a_stranger_that_is_needed_and_names_each_key_once(drive):
    # 5 passes of 2 layers of 4 experts, so that strangers meet each other and what is needed
    keys = [[[p % 4, (p + 1) % 4, (p + 2) % 4], [4 + p % 4, 4 + (p + 3) % 4]] for p in range(5)]
    passes = [(0, position, layers) for position, layers in enumerate(keys)]
    # from the same commit: recall 0.5, precision 0.3; it named some strangers twice
    of_events = [[4, 7, 6], [3], [5, 4, 6], [3, 1, 0, 1], [6], [3, 2, 0, 1], [7], [0, 1], [7]]
    shape = RouteShape(num_layers=2, num_experts=4, top_k=3)
    noisy = made("noisy_oracle", shape, passes, recall=0.5, precision=0.3, seed=3)
    assert drive(noisy, passes) == [list(dict.fromkeys(keys)) for keys in of_events] + [[]]


def test_a_predictor_in_tables():
    assert PredictorSettings().label("nothing") == "nothing"
    assert PredictorSettings(lead_layers=2).label("oracle") == "oracle, 2 ahead"
    assert PredictorSettings(recall=0.5).label("noisy_oracle") == "noisy_oracle (recall 0.5, precision 1), 1 ahead"
    assert PredictorSettings().label("/a/b/mine.py:Mine@sha256:00ff") == "mine.py:Mine, 1 ahead"
