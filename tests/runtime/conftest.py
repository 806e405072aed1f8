"""Packed stores, engines on them, and a short sequence to run through both paths."""

import warnings

import numpy as np
import pytest
from tokenizers import Tokenizer

from workbench.paths import bundled_model
from workbench.runtime.config import RuntimeConfig
from workbench.runtime.resident_engine import ResidentEngine
from workbench.runtime.session import Session
from workbench.runtime.store_cache import cache_limits
from workbench.runtime.streamed import StreamedEngine
from workbench.schema import EventLog
from workbench.stores import open_store
from workbench.stores.build import BuildSettings
from workbench.stores.pack import pack

TWO_TABLES_CONFIG = {
    "model_type": "qwen4_exp_text", "vocab_size": 300, "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32,
    "linear_value_head_dim": 32, "linear_conv_kernel_dim": 4, "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64, "num_experts": 12, "num_experts_per_tok": 3, "norm_topk_prob": True, "hc_count": 2,
    "hc_lowrank": 16, "ple_layer_ids": [2, 3], "ple_embed_dim": 128, "ple_conv_kernel_size": 4, "ngram_size": 3,
    "heads_per_ngram": 2, "ngram_vocab_size_base": 500, "split_ngram_parts": 2, "make_ngram_vocab_size_divisible_by": 128,
    "seed": 5, "indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 32, "indexer_budget": 16,
    "indexer_compress_ratio": 4, "output_gate_type": "sigmoid", "hidden_act": "silu", "rms_norm_eps": 1e-6,
    "max_position_embeddings": 512, "full_attention_interval": 4, "tie_word_embeddings": False, "eos_token_id": 0,
    "pad_token_id": 0, "mtp_num_hidden_layers": 1, "quantization": {"bits": 4, "group_size": 64, "mode": "affine"},
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
                        "mrope_section": [3, 3, 2], "mrope_interleaved": True},
}  # fmt: skip
"""Two n-gram tables, records that are no multiple of a page, and an indexer budget that a short prompt exceeds."""


@pytest.fixture(scope="session")
def mini_store(tmp_path_factory):
    """The bundled model, packed."""
    folder = tmp_path_factory.mktemp("stores") / "mini"
    pack(bundled_model(), folder)
    return folder


@pytest.fixture(scope="session")
def two_tables(tmp_path_factory):
    """A random checkpoint with two PLE layers, and its store."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from predictors.reference import write_random_checkpoint
    checkpoint, store = tmp_path_factory.mktemp("two-tables"), tmp_path_factory.mktemp("stores") / "two-tables"
    write_random_checkpoint(checkpoint, TWO_TABLES_CONFIG, layout="quantised")
    # equality is to the decoded rows: 4-bit ones, the default at this width, are not the checkpoint's
    pack(checkpoint, store, settings=BuildSettings(row_codec="bf16"))
    return checkpoint, store


@pytest.fixture(scope="session")
def mini_tokens():
    """140 tokens of held-out text: more than the indexer's budget of 128."""
    text = (bundled_model() / "eval.txt").read_text()
    return Tokenizer.from_file(str(bundled_model() / "tokenizer.json")).encode(text[:2000]).ids[:140]


def run_sequence(engine, tokens, decoded=6, tile=48):
    """Prefills, decodes greedily, and returns both digests and the logits of every step."""
    session = Session(engine, tile=tile)
    logits = [session.prefill(tokens)]
    for _ in range(decoded):
        logits.append(session.decode(int(np.argmax(logits[-1]))))
    return session.state.digest(), session.routing_digest, np.stack(logits)


@pytest.fixture(scope="session")
def resident_run():
    """Digests and logits of the resident path on a checkpoint."""

    def run(checkpoint, tokens, **options):
        with ResidentEngine(checkpoint, EventLog()) as engine:
            return run_sequence(engine, tokens, **options)

    return run


@pytest.fixture(scope="session")
def streamed_run():
    """Digests and logits of the streamed path on a store, and its event log."""

    def run(store, tokens, config, **options):
        log = EventLog()
        with StreamedEngine(store, config, log) as engine:
            digests = run_sequence(engine, tokens, **options)
        return digests, log.frame()

    return run


@pytest.fixture(scope="session")
def budget_bytes():
    """Bytes of the smallest cache that is admitted, of everything, and of `share` between them."""

    def at(store_folder, share):
        least, most = cache_limits(open_store(store_folder))
        return least.num_bytes + int(share * (most.num_bytes - least.num_bytes))

    return at


@pytest.fixture
def runtime_config():
    """A `RuntimeConfig` with settings of its own."""
    return lambda **settings: RuntimeConfig(**settings)
