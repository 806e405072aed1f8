"""The MLX model equals transformers' unmodified class: logits, routes, QSA blocks, greedy text, bits per byte."""

import json
import math
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from workbench.runtime.forward import forward, prefill

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "mini_golden.json").read_text())
WINDOW = 1024
TILE = 256
README_BITS_PER_BYTE = 0.9119


@pytest.fixture(scope="module")
def reference(load_reference, mini_folder):
    return load_reference(mini_folder)


def compare_window(index, mini, reference, reference_choices, compare_with_reference, eval_tokens):
    tokens = eval_tokens[index * WINDOW : (index + 1) * WINDOW]
    return compare_with_reference(mini, reference_choices(reference, tokens), tokens, [TILE])


def test_one_window_of_held_out_text(mini, reference, reference_choices, compare_with_reference, eval_tokens):
    compare_window(1, mini, reference, reference_choices, compare_with_reference, eval_tokens)


@pytest.mark.soak
def test_8192_tokens_of_held_out_text(mini, reference, reference_choices, compare_with_reference, eval_tokens):
    exceptions = []
    for index in range(8):
        exceptions += compare_window(index, mini, reference, reference_choices, compare_with_reference, eval_tokens)[1]
    # of 65,536 router rows 120 lie so near a tie that float noise may decide
    assert len(exceptions) <= 120


def test_quite_different_geometry_far_past_its_budget(odd, odd_folder, load_reference, reference_choices, compare_with_reference):
    rng = np.random.default_rng(5)
    tokens = rng.integers(0, 3000, 300)
    tokens[[40, 77, 78, 200]] = 7
    choices = reference_choices(load_reference(odd_folder), tokens)
    assert len(tokens) > 4 * odd[0].geometry.indexer_budget
    compare_with_reference(odd, choices, tokens, [13, 50, 1, 9, 31, 2, 8, 1, 1])


@pytest.mark.parametrize("case", [pytest.param(case, marks=[pytest.mark.soak] if case > 1 else []) for case in range(8)])
def test_greedy_continuation(mini, eval_tokens, case):
    model, experts, rows = mini
    golden = GOLDEN["greedy"][case]
    prompt = eval_tokens[golden["start"] : golden["start"] + golden["num_tokens"]]
    state = model.new_state()
    logits = prefill(model, experts, rows, state, prompt)
    for step, (token, margin) in enumerate(zip(golden["tokens"], golden["margins"], strict=True)):
        if margin < 0.01:
            print(f"prompt {case}: compared up to step {step}, where the reference's margin is {margin:.4f}")
            break
        assert mx.argmax(logits[-1]).item() == token, f"step {step}"
        logits = forward(model, experts, rows, state, np.array([token]))


def bits_per_byte(mini, eval_tokens, num_windows):
    """Windows of 512 predicted tokens, stride 512, each from an empty state."""
    model, experts, rows = mini
    nats, num_bytes, width = 0.0, 0, GOLDEN["window"]
    for start in range(0, num_windows * width, width):
        state, targets = model.new_state(), eval_tokens[start + 1 : start + width + 1]
        for tile in range(0, width, TILE):
            logits = forward(model, experts, rows, state, eval_tokens[start + tile : start + tile + TILE])
            wanted = mx.array(targets[tile : tile + TILE])
            nats += mx.sum(mx.logsumexp(logits, -1) - mx.take_along_axis(logits, wanted[:, None], -1)[:, 0]).item()
        num_bytes += int(np.array(GOLDEN["token_bytes"])[targets].sum())
    return nats / math.log(2) / num_bytes


def test_bits_per_byte_of_one_window(mini, eval_tokens):
    assert bits_per_byte(mini, eval_tokens, 1) == pytest.approx(GOLDEN["bits_per_byte"]["1"], rel=1e-5)


@pytest.mark.soak
def test_bits_per_byte_of_all_held_out_text(mini, eval_tokens):
    value = bits_per_byte(mini, eval_tokens, (len(eval_tokens) - 2) // GOLDEN["window"])
    print(f"bits per byte {value:.5f}")
    assert value == pytest.approx(README_BITS_PER_BYTE, rel=1e-3)
