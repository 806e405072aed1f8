"""Predictors by name and from files."""

import textwrap

import pytest

from workbench.errors import BadInput
from workbench.plugins import pinned
from workbench.prediction import PREDICTORS, PassFuture, Predictor, PredictorSettings, make_predictor

BACK_AND_FORTH = textwrap.dedent('''
    """Predicts what the layer ahead used for the last two tokens, the more frequent first."""

    from collections import Counter, defaultdict, deque

    from workbench.prediction import Predictor
    from workbench.scheduling import PredictedKey


    class BackAndForth(Predictor):
        """Keys of two committed tokens."""

        name = "back-and-forth"

        def __init__(self, shape, settings):
            super().__init__(shape, settings)
            self.rows = defaultdict(lambda: deque(maxlen=2))

        def committed(self, scope, layer, keys):
            for row in keys:
                self.rows[scope.request, layer].append([int(key) for key in row])

        def look(self, scope, layer, tensors):
            target, _ = self.ahead(layer)
            rows = self.rows[scope.request, target]
            counts = Counter(key for row in rows for key in row)
            return [PredictedKey(key, uses / len(rows)) for key, uses in counts.most_common()]
''')


@pytest.mark.parametrize("name", PREDICTORS)
def test_every_name_makes_its_predictor(name, shape):
    predictor = make_predictor(name, shape, PredictorSettings(), PassFuture([]))
    assert isinstance(predictor, Predictor)
    assert predictor.name == name


def test_unknown_names_suggest_the_nearest(shape):
    with pytest.raises(BadInput, match=r"no predictor 'next-layer', did you mean next_layer\?; there are nothing, "):
        make_predictor("next-layer", shape, PredictorSettings())


@pytest.mark.parametrize("name", ["oracle", "noisy_oracle"])
def test_an_oracle_without_a_future_says_how_to_record_one(name, shape):
    with pytest.raises(BadInput, match=rf"^predictor {name} needs .* `workbench trace` .* runtime\.predictor_settings\.routes$"):
        make_predictor(name, shape, PredictorSettings())


def test_a_class_of_ones_own_predicts(shape, drive, tmp_path):
    assert BACK_AND_FORTH.count("\n") <= 40
    file = tmp_path / "mine.py"
    file.write_text(BACK_AND_FORTH)
    for spec in (f"{file}:BackAndForth", pinned(f"{file}:BackAndForth")):
        predictor = make_predictor(spec, shape, PredictorSettings())
        passes = [(0, 0, [[1], [20, 21]]), (0, 1, [[2], [21, 22]]), (0, 2, [[3], [30]])]
        assert drive(predictor, passes) == [[], [], [20, 21], [1], [21, 20, 22], [1, 2]]
        assert predictor.name == "back-and-forth"


def test_an_oracle_of_ones_own_knows_the_future(shape, drive, tmp_path):
    file = tmp_path / "half.py"
    file.write_text(
        textwrap.dedent("""
            from workbench.prediction.controls import Oracle

            class FirstOnly(Oracle):
                def look(self, scope, layer, tensors):
                    return super().look(scope, layer, tensors)[:1]
        """)
    )
    passes = [(0, 0, [[1, 2], [20, 21]]), (0, 1, [[2, 3], [21, 22]])]
    predictor = make_predictor(f"{file}:FirstOnly", shape, PredictorSettings(), PassFuture(passes))
    assert drive(predictor, passes) == [[20], [2], [21], []]
    # its reads are named by its class
    assert predictor.name == "FirstOnly"
