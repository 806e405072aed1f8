"""Models under test, the torch reference's choices on a window, and a way to follow them where both are right."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import warnings
from dataclasses import dataclass, field
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from tokenizers import Tokenizer

from workbench.geometry import INDEXED_ATTENTION
from workbench.runtime.resident import load_resident, run_forward

MINI = Path(__file__).parents[2] / "data" / "qwen4exp-mini-4bit"
NEAR_TIE = 1e-6
LOGIT_TOLERANCE = 1e-5

ODD_CONFIG = {
    "model_type": "qwen4_exp_text",
    "vocab_size": 3000,
    "hidden_size": 192,
    "num_hidden_layers": 8,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_key_heads": 3,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 3,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 96,
    "num_experts": 24,
    "num_experts_per_tok": 6,
    "norm_topk_prob": True,
    "hc_count": 2,
    "hc_lowrank": 24,
    "ple_layer_ids": [2, 6],
    "ple_embed_dim": 192,
    "ple_conv_kernel_size": 3,
    "ngram_size": 3,
    "heads_per_ngram": 4,
    "ngram_vocab_size_base": 500,
    "split_ngram_parts": 4,
    "make_ngram_vocab_size_divisible_by": 128,
    "seed": 4321,
    # many index heads: with few, scores of exactly 0 tie at the cut
    "indexer_n_heads": 8,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 64,
    "indexer_budget": 64,
    "indexer_compress_ratio": 8,
    "output_gate_type": "silu",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 2048,
    "full_attention_interval": 4,
    "tie_word_embeddings": False,
    "eos_token_id": 7,
    "pad_token_id": 7,
    "mtp_num_hidden_layers": 1,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 50000.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [3, 3, 2],
        "mrope_interleaved": True,
    },
    "quantization": {"bits": 4, "group_size": 64, "mode": "affine"},
}
"""Different from mini in every number that could be hard-coded."""


@pytest.fixture(scope="session")
def mini_folder():
    return MINI


@pytest.fixture(scope="session")
def mini():
    return load_resident(MINI)


@pytest.fixture(scope="session")
def eval_tokens():
    """The tokens of the held-out text."""
    return np.array(Tokenizer.from_file(str(MINI / "tokenizer.json")).encode((MINI / "eval.txt").read_text()).ids)


@pytest.fixture(scope="session")
def torch():
    import torch

    # more would spin against the other test processes
    torch.set_num_threads(1)
    return torch


@pytest.fixture(scope="session")
def load_reference(torch):
    """`predictors.reference.load_reference` with transformers' import warnings let through."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from predictors import reference
    return reference.load_reference


@pytest.fixture(scope="session")
def odd_folder(tmp_path_factory, load_reference):
    """A random checkpoint of quite different geometry."""
    from predictors.reference import write_random_checkpoint

    folder = tmp_path_factory.mktemp("odd")
    write_random_checkpoint(folder, ODD_CONFIG, layout="quantised")
    return folder


@pytest.fixture(scope="session")
def odd(odd_folder):
    return load_resident(odd_folder)


@pytest.fixture(scope="session")
def decode_all():
    """Runs tokens in the given block lengths, over and over, and returns all logits."""

    def decode(loaded, state, tokens, lengths):
        model, experts, rows = loaded
        logits, start = [], 0
        while start < len(tokens):
            length = lengths[len(logits) % len(lengths)]
            logits.append(np.array(run_forward(model, state, tokens[start : start + length], experts, rows)))
            start += length
        return np.concatenate(logits)

    return decode


# ---- the reference's choices ------------------------------------------------------------------------------------------


@dataclass
class Choices:
    """What the reference computed on one window: logits, and by layer what it chose from which scores."""

    logits: np.ndarray = None
    chosen: dict = field(default_factory=dict)
    """(kind, layer) to ids `[rows, k]`; kind is route or blocks, blocks ascending and only for rows past the budget."""
    scores: dict = field(default_factory=dict)
    """(kind, layer) to probabilities or scores `[rows, candidates]`."""


@pytest.fixture(scope="session")
def reference_choices(torch):
    """Runs the reference on a window without cache and records its choices."""

    def run(reference, tokens):
        choices, hooks = Choices(), []
        for index, layer in enumerate(reference.model.layers):
            hooks.append(layer.mlp.gate.register_forward_hook(_note_route(torch, choices, index)))
            if reference.config.layer_types[index] == INDEXED_ATTENTION:
                hooks.append(layer.self_attn.indexer.register_forward_hook(_note_blocks(torch, choices, index)))
        with torch.inference_mode():
            choices.logits = reference(torch.from_numpy(tokens)[None], use_cache=False).logits[0].numpy()
        for hook in hooks:
            hook.remove()
        return choices

    return run


def _note_route(torch, choices, layer):
    def note(module, arguments, outputs):
        logits, _, ids = outputs
        choices.scores["route", layer] = torch.softmax(logits, -1).numpy()
        choices.chosen["route", layer] = ids.numpy()

    return note


def _note_blocks(torch, choices, layer):
    """The reference returns only a mask; its block scores are computed again from its inputs and weights."""

    def rotated(x, cos, sin):
        width = cos.shape[-1]
        half = width // 2
        turned = torch.cat([-x[..., half:width], x[..., :half]], -1)
        return torch.cat([x[..., :width] * cos + turned * sin, x[..., width:]], -1)

    def note(module, arguments, mask):
        hidden, (cos, sin) = arguments[0][0], (part[0][:, None] for part in arguments[1])
        ratio, width, num_tokens = module.compress_ratio, module.index_head_dim, len(hidden)
        num_blocks, first = num_tokens // ratio, (module.block_topk + 1) * ratio - 1
        projected = module.index_qk_proj(hidden)
        queries = rotated(module.q_layernorm(projected[:, :-width].reshape(num_tokens, -1, width)), cos, sin)
        pooled = projected[: num_blocks * ratio, -width:].reshape(num_blocks, ratio, width).mean(1)
        starts = slice(0, num_blocks * ratio, ratio)
        keys = rotated(module.k_layernorm(pooled)[:, None], cos[starts], sin[starts])[:, 0]
        scores = torch.relu(torch.einsum("thd,bd->tbh", queries, keys)).sum(-1) / width**0.5
        complete = (torch.arange(num_tokens)[:, None] + 1) // ratio > torch.arange(num_blocks)
        picked = mask[0, 0, :, : num_blocks * ratio].reshape(num_tokens, num_blocks, ratio).all(-1) & complete
        choices.scores["blocks", layer] = scores[first:].numpy()
        choices.chosen["blocks", layer] = picked[first:].nonzero()[:, 1].reshape(-1, module.block_topk).numpy()

    return note


class Follower:
    """Stands in a model's choices: takes the reference's where both are right, fails where only one is."""

    def __init__(self, choices):
        self.choices = choices
        self.exceptions = []
        self._rows_seen = {}

    def checked(self, kind, layer, own):
        """`own [R, k]` with rows replaced that differ from the reference at a near tie."""
        first = self._rows_seen.get((kind, layer), 0)
        self._rows_seen[kind, layer] = first + len(own)
        wanted = self.choices.chosen[kind, layer][first : first + len(own)]
        scores = self.choices.scores[kind, layer][first : first + len(own)]
        if kind == "blocks":
            own = np.sort(own, axis=-1)
        for row in np.flatnonzero((own != wanted).any(axis=-1)):
            gap = np.abs(np.sort(scores[row, own[row]]) - np.sort(scores[row, wanted[row]])).max()
            if kind == "route":
                gap = max(gap, np.abs(scores[row, own[row]] - scores[row, wanted[row]]).max())
            assert gap < NEAR_TIE, f"{kind} of layer {layer}, row {first + row}: {own[row]}, reference {wanted[row]}, gap {gap}"
            self.exceptions.append((kind, layer, int(first + row), float(gap)))
        return mx.array(wanted.astype(np.uint32))


@pytest.fixture(scope="session")
def compare_with_reference(decode_all):
    """Feeds a window in block lengths; asserts equal choices and logits, returns the logits and the exceptions."""

    def compare(loaded, choices, tokens, lengths):
        model, follower = loaded[0], Follower(choices)
        with pytest.MonkeyPatch.context() as patch:
            for layer in model.layers:
                _follow(patch, follower, layer._router, "choose", "route", layer.index)
                if layer.kind == INDEXED_ATTENTION:
                    _follow(patch, follower, layer._attention, "choose_blocks", "blocks", layer.index)
            logits = decode_all(loaded, model.new_state(), tokens, lengths)
        spread = choices.logits.max() - choices.logits.min()
        error = np.abs(logits - choices.logits).max() / spread
        print(f"max |logit difference| {error:.2e} of the range, exceptions {follower.exceptions}")
        assert error <= LOGIT_TOLERANCE
        return logits, follower.exceptions

    return compare


def _follow(patch, follower, owner, method, kind, layer):
    native = getattr(owner, method)
    patch.setattr(owner, method, lambda *arguments: follower.checked(kind, layer, np.array(native(*arguments))))
