import numpy as np
import pytest

from workbench.analysis.routes import Routes


@pytest.fixture
def make_routes():
    """Random routes: `num_requests` requests of `prompt` + `tokens` tokens; `choose(rng, shape, E, K)` draws the experts."""

    def make(*, num_requests=6, tokens=40, prompt=0, layers=2, experts=16, top_k=4, seed=0):
        rng = np.random.default_rng(seed)
        length = prompt + tokens
        keys = rng.random((num_requests * length, layers, experts)) ** (1 / (1 + np.arange(experts)))
        return Routes(
            experts=np.argsort(-keys, axis=-1)[..., :top_k],
            request=np.repeat(np.arange(num_requests), length),
            decoded=np.tile(np.arange(length) >= prompt, num_requests),
            layers=tuple(range(layers)),
            num_experts=experts,
            splits=("held_out",) * num_requests,
        )

    return make
