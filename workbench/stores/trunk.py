"""Names, shapes and starting values of every resident tensor of a Qwen4Exp text model.

The values keep activations finite and of order one at any depth; they are random otherwise.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from workbench.geometry import LINEAR_ATTENTION, Geometry
from workbench.stores.safetensors_file import TensorInfo

Start = Literal["zeros", "ones", "decay", "integers", "uniform"]
_ROUTER_GAIN = 2.0
"""Factor of the router's weights: spreads its logits, so that the chosen experts' weights differ."""


@dataclass(frozen=True, kw_only=True)
class TrunkTensor:
    """One resident tensor."""

    info: TensorInfo
    start: Start
    std: float = 0.0
    """Standard deviation of the uniform values."""
    integers: tuple[int, ...] = ()


def trunk_tensors(geometry: Geometry) -> dict[str, TrunkTensor]:
    """All resident tensors but the MTP head's, by their transformers name."""
    tensors = {
        "lm_head.weight": _linear(geometry.vocab_size, geometry.hidden_size),
        "model.embed_tokens.weight": _uniform((geometry.vocab_size, geometry.hidden_size), 1.0),
        **_hyper_connection(geometry, "model.hyper_connection_mixer.", injects=False),
    }
    for layer, kind in enumerate(geometry.layer_types):
        prefix = f"model.layers.{layer}."
        tensors |= _hyper_connection(geometry, prefix + "attn_hyper_connection.")
        tensors |= _hyper_connection(geometry, prefix + "mlp_hyper_connection.")
        tensors |= _gdn(geometry, prefix) if kind == LINEAR_ATTENTION else _qsa(geometry, prefix)
        tensors |= _mlp(geometry, prefix + "mlp.")
        if layer in geometry.ple_layers:
            tensors |= _ple(geometry, prefix + "ple.", geometry.ple_layers.index(layer))
    return tensors


def mtp_tensors(geometry: Geometry) -> dict[str, TrunkTensor]:
    """The resident tensors of the MTP head, by the names that conversions give them."""
    wide, layer = geometry.hc_count * geometry.hidden_size, "mtp.layers.0."
    return {
        "mtp.fc_embedding.weight": _linear(geometry.hidden_size, geometry.hidden_size),
        "mtp.fc_hidden.weight": _linear(geometry.hidden_size, geometry.hidden_size),
        **_hyper_connection(geometry, "mtp.hyper_connection_mixer.", injects=False),
        **_hyper_connection(geometry, layer + "attn_hyper_connection."),
        **_hyper_connection(geometry, layer + "mlp_hyper_connection."),
        **_qsa(geometry, layer),
        **_mlp(geometry, layer + "mlp."),
        "mtp.pre_fc_norm_embedding.weight": _vector(geometry.hidden_size),
        "mtp.pre_fc_norm_hidden.weight": _vector(wide),
    }


def _uniform(shape: tuple[int, ...], std: float) -> TrunkTensor:
    return TrunkTensor(info=TensorInfo(dtype="BF16", shape=shape), start="uniform", std=std)


def _linear(output_size: int, input_size: int, gain: float = 1.0) -> TrunkTensor:
    return _uniform((output_size, input_size), gain / math.sqrt(input_size))


def _conv(channels: int, kernel_size: int) -> TrunkTensor:
    return _uniform((channels, 1, kernel_size), 1 / math.sqrt(kernel_size))


def _vector(size: int, start: Start = "zeros") -> TrunkTensor:
    return TrunkTensor(info=TensorInfo(dtype="F32", shape=(size,)), start=start)


def _integers(values: tuple[int, ...]) -> TrunkTensor:
    return TrunkTensor(info=TensorInfo(dtype="I64", shape=(len(values),)), start="integers", integers=values)


def _hyper_connection(geometry: Geometry, prefix: str, *, injects: bool = True) -> dict[str, TrunkTensor]:
    wide = geometry.hc_count * geometry.hidden_size
    tensors = {
        prefix + "hc_norm.weight": _vector(wide),
        prefix + "input_mix_weight_down.weight": _linear(geometry.hc_lowrank, wide),
        prefix + "input_mix_weight_up.weight": _linear(wide, geometry.hc_lowrank),
    }
    return tensors | ({prefix + "block_inject_weight.weight": _linear(geometry.hc_count, wide)} if injects else {})


def _gdn(geometry: Geometry, layer_prefix: str) -> dict[str, TrunkTensor]:
    prefix, hidden, heads = layer_prefix + "linear_attn.", geometry.hidden_size, geometry.linear_num_value_heads
    key, value = geometry.linear_num_key_heads * geometry.linear_key_head_dim, heads * geometry.linear_value_head_dim
    mixed = 2 * key + value
    return {
        prefix + "A_log": _vector(heads, "decay"),
        prefix + "conv1d.weight": _conv(mixed, geometry.linear_conv_kernel_dim),
        prefix + "dt_bias": _vector(heads, "ones"),
        prefix + "in_proj_a.weight": _linear(heads, hidden),
        prefix + "in_proj_b.weight": _linear(heads, hidden),
        prefix + "in_proj_qkv.weight": _linear(mixed, hidden),
        prefix + "in_proj_z.weight": _linear(value, hidden),
        prefix + "norm.weight": _vector(geometry.linear_value_head_dim, "ones"),
        prefix + "out_proj.weight": _linear(hidden, value),
    }


def _qsa(geometry: Geometry, layer_prefix: str) -> dict[str, TrunkTensor]:
    prefix, hidden = layer_prefix + "self_attn.", geometry.hidden_size
    heads, pairs = geometry.num_attention_heads * geometry.head_dim, geometry.num_key_value_heads * geometry.head_dim
    indexer = (geometry.indexer_n_heads + 1) * geometry.indexer_head_dim
    return {
        prefix + "indexer.index_qk_proj.weight": _linear(indexer, hidden),
        prefix + "indexer.k_layernorm.weight": _vector(geometry.indexer_head_dim),
        prefix + "indexer.q_layernorm.weight": _vector(geometry.indexer_head_dim),
        prefix + "k_norm.weight": _vector(geometry.head_dim),
        prefix + "k_proj.weight": _linear(pairs, hidden),
        prefix + "o_proj.weight": _linear(hidden, heads),
        prefix + "q_norm.weight": _vector(geometry.head_dim),
        prefix + "q_proj.weight": _linear(2 * heads, hidden),
        prefix + "v_proj.weight": _linear(pairs, hidden),
    }


def _mlp(geometry: Geometry, prefix: str) -> dict[str, TrunkTensor]:
    hidden, narrow = geometry.hidden_size, geometry.shared_expert_intermediate_size
    return {
        prefix + "gate.weight": _linear(geometry.num_experts, hidden, _ROUTER_GAIN),
        prefix + "shared_expert.down_proj.weight": _linear(hidden, narrow),
        prefix + "shared_expert.gate_proj.weight": _linear(narrow, hidden),
        prefix + "shared_expert.up_proj.weight": _linear(narrow, hidden),
        prefix + "shared_expert_gate.weight": _linear(1, hidden),
    }


def _ple(geometry: Geometry, prefix: str, position: int) -> dict[str, TrunkTensor]:
    wide = geometry.hc_count * geometry.hidden_size
    sizes = geometry.ple_head_sizes(position)
    offsets = tuple(int(offset) for offset in np.cumsum((0, *sizes[:-1])))
    return {
        prefix + "conv1d.weight": _conv(wide, geometry.ple_conv_kernel_size),
        prefix + "key_proj.weight": _linear(wide, geometry.ple_embed_dim),
        prefix + "norm_conv.weight": _vector(wide),
        prefix + "norm_key.weight": _vector(wide),
        prefix + "norm_query.weight": _vector(wide),
        prefix + "ple_embedding.layer_multipliers": _integers(geometry.ple_multipliers(position)),
        prefix + "ple_embedding.ngram_heads_offsets": _integers(offsets),
        prefix + "ple_embedding.ngram_heads_vocab_sizes": _integers(sizes),
        prefix + "value_proj.weight": _linear(geometry.hidden_size, geometry.ple_embed_dim),
    }
