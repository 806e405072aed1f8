import numpy as np
import pytest

from workbench.prediction import RouteShape
from workbench.scheduling.ticket import Scope


@pytest.fixture
def shape():
    return RouteShape(num_layers=2, num_experts=16, top_k=3)


@pytest.fixture
def drive():
    """Runs decode passes `(request, position, keys by layer)` through a predictor: keys that it names, by pass and layer."""

    def run(predictor, passes):
        named = []
        for request, position, layers in passes:
            scope = Scope(request, "decode", position)
            for layer, keys in enumerate(layers):
                ids = np.array([keys]) - layer * predictor.shape.num_experts
                named.append([each.key for each in predictor.look(scope, layer, {"ids": ids})])
            for layer, keys in enumerate(layers):
                predictor.committed(scope, layer, [keys])
        return named

    return run
