"""The MTP head against the recipe that trained it."""

import importlib.util

import mlx.core as mx
import numpy as np
import pytest

from workbench.runtime.forward import draft
from workbench.runtime.resident import run_forward, run_stages


@pytest.fixture(scope="module")
def recipe_drafts(torch, load_reference, mini_folder, eval_tokens):
    """Wide residuals and draft logits of the recipe's own torch model on the first tokens of the held-out text."""
    from predictors.reference import read_checkpoint

    spec = importlib.util.spec_from_file_location("q4e", mini_folder / "recipe" / "q4e.py")
    q4e = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(q4e)
    config, tensors = read_checkpoint(mini_folder)
    model = q4e.Model(config)
    model.load_state_dict(tensors)
    tokens = torch.from_numpy(eval_tokens[:49])[None]
    with torch.inference_mode():
        cos, sin = model.rope(48, "cpu", torch.float32)
        sparse = torch.zeros((), dtype=torch.bool)
        wide = model.trunk(tokens[:, :-1], cos, sin, sparse, torch.float32, False)[0]
        hidden = model.mtp_out(wide, tokens[:, 1:], cos, sin, sparse, False)[0]
        return torch.nn.functional.linear(hidden, model.lm_head.weight)[0].numpy()


@pytest.mark.parametrize("lengths", [[48], [30, 1, 7]])
def test_drafts_equal_the_recipe(mini, recipe_drafts, eval_tokens, lengths):
    model, experts, rows = mini
    state, drafts, start = model.new_state(), [], 0
    while start < len(recipe_drafts):
        tokens = eval_tokens[start : min(start + lengths[len(drafts) % len(lengths)], len(recipe_drafts))]
        wide = []
        for token in tokens:
            run_forward(model, state, np.array([token]), experts, rows)
            wide.append(state.arrays["wide"])
        following = eval_tokens[start + 1 : start + len(tokens) + 1]
        drafts.append(np.array(run_stages(draft(model, state, mx.concatenate(wide), following), experts, {})))
        start += len(tokens)
    error = np.abs(np.concatenate(drafts) - recipe_drafts).max()
    assert error <= 1e-5 * (recipe_drafts.max() - recipe_drafts.min())
