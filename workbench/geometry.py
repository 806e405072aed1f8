"""Shapes of a Qwen4Exp model and the bytes that follow from them.

Field names are those of the Hugging Face config (`Qwen4ExpTextConfig`, transformers 5.24). Everything here is arithmetic:
no file but a `config.json` is read, no array is made.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from workbench.errors import BadInput, shortened
from workbench.files import read_json_object

LINEAR_ATTENTION = "linear_attention"
INDEXED_ATTENTION = "indexed_attention"
_LAYER_TYPE_NAMES = {
    "linear_attention": LINEAR_ATTENTION,
    "indexed_attention": INDEXED_ATTENTION,
    # the official checkpoint and transformers' first releases name QSA layers so
    "full_attention": INDEXED_ATTENTION,
    "deepseek_sparse_attention": INDEXED_ATTENTION,
}

GATE, UP, DOWN = "gate", "up", "down"
COMPONENTS = (GATE, UP, DOWN)
"""Order of the components in a record (ExpertMajor v2)."""

_MASK64 = (1 << 64) - 1
_LARGEST_NUMBER = 2**31 - 1
_LARGEST_FLOAT = 1e30
_MOST_LAYERS = 4096
_MOST = {"num_hidden_layers": _MOST_LAYERS, "mtp_num_hidden_layers": _MOST_LAYERS, "seed": 2**64 - 1}
"""Largest value of a field, where it is not `_LARGEST_NUMBER`."""
_MOST_NGRAM_HEADS = 256
"""Most n-gram heads of all layers together: the size of each head's table is a prime number that must be searched."""
_MAY_BE_ZERO = ("seed", "eos_token_id", "mtp_num_hidden_layers")


def _split_mix64(value: int) -> int:
    """SplitMix64 finaliser, as transformers' `Qwen4ExpTextNgramEmbedding` seeds its multipliers."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return (value ^ (value >> 31)) & _MASK64


def _is_prime(value: int) -> bool:
    return value > 1 and all(value % d for d in range(2, math.isqrt(value) + 1))


@dataclass(frozen=True, kw_only=True)
class Codec:
    """MLX affine quantisation of the routed experts: `bits` a weight, one bf16 scale and one bf16 bias a `group_size` weights."""

    bits: int = 4
    group_size: int = 64

    def __post_init__(self) -> None:
        whole = type(self.bits) is int and type(self.group_size) is int
        if not whole or self.bits not in (2, 3, 4, 5, 6, 8) or self.group_size not in (32, 64, 128):
            raise BadInput(
                f"affine codec must have bits 2..8 and group size 32, 64 or 128, "
                f"got {str(self.bits)[:40]} and {str(self.group_size)[:40]}"
            )

    def matrix_bytes(self, rows: int, columns: int) -> int:
        """Bytes of a quantised `(rows, columns)` matrix: packed words, scales, biases."""
        return rows * columns * self.bits // 8 + 2 * 2 * rows * columns // self.group_size


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """Shapes, hash constants and norms of a Qwen4Exp text model; fields mean what transformers' config says."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    layer_types: tuple[str, ...]
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_conv_kernel_dim: int
    moe_intermediate_size: int
    shared_expert_intermediate_size: int
    num_experts: int
    num_experts_per_tok: int
    hc_count: int
    hc_lowrank: int
    ple_layer_ids: tuple[int, ...]
    """One-based: id 2 is the layer of index 1."""
    ple_embed_dim: int
    ple_conv_kernel_size: int
    ngram_size: int
    heads_per_ngram: int
    ngram_vocab_size_base: int
    make_ngram_vocab_size_divisible_by: int
    indexer_n_heads: int
    indexer_head_dim: int
    indexer_budget: int
    indexer_compress_ratio: int
    rope_theta: float
    partial_rotary_factor: float
    norm_topk_prob: bool = True
    output_gate_type: str = "sigmoid"
    rms_norm_eps: float = 1e-6
    seed: int = 1234
    eos_token_id: int = 0
    mtp_num_hidden_layers: int = 0
    split_ngram_parts: int = 1
    max_position_embeddings: int = 262_144
    codec: Codec = Codec()
    """How the routed experts are stored."""

    def __post_init__(self) -> None:
        self._check_numbers()
        if len(self.layer_types) != self.num_hidden_layers:
            raise BadInput(f"layer_types names {len(self.layer_types)} layers, num_hidden_layers is {self.num_hidden_layers}")
        if unknown := set(self.layer_types) - {LINEAR_ATTENTION, INDEXED_ATTENTION}:
            raise BadInput(f"unknown layer type {sorted(unknown)[0]!r}")
        if not 0 < self.num_experts_per_tok <= self.num_experts:
            raise BadInput(f"top-{self.num_experts_per_tok} of {self.num_experts} experts is not a routing")
        ids = self.ple_layer_ids
        if not all(type(i) is int and 1 <= i <= self.num_hidden_layers for i in ids) or len(set(ids)) < len(ids):
            most = f"1..{self.num_hidden_layers} (they count from 1)"
            raise BadInput(f"ple_layer_ids {shortened(str(list(ids)))} must be integers in {most}, none twice")
        if self.ple_layer_ids and (self.ple_heads == 0 or self.ple_embed_dim % self.ple_heads):
            raise BadInput(f"ple_embed_dim {self.ple_embed_dim} must be a multiple of {self.ple_heads} n-gram heads, one or more")
        if (heads := len(self.ple_layer_ids) * self.ple_heads) > _MOST_NGRAM_HEADS:
            raise BadInput(f"config: {heads} n-gram heads in all layers, at most {_MOST_NGRAM_HEADS} are allowed")
        if self.indexer_budget % self.indexer_compress_ratio:
            raise BadInput("indexer_budget must be a multiple of indexer_compress_ratio")

    def _check_numbers(self) -> None:
        for field in fields(self):
            name, value = field.name, getattr(self, field.name)
            low, high = (0 if name in _MAY_BE_ZERO else 1), _MOST.get(name, _LARGEST_NUMBER)
            if field.type is int and not (type(value) is int and low <= value <= high):
                raise BadInput(f"config: {name} must be an integer from {low} to {high}, got {str(value)[:40]}")
            if field.type is float and not (type(value) in (int, float) and 0 < value < _LARGEST_FLOAT):
                raise BadInput(f"config: {name} must be a number above 0, got {str(value)[:40]}")
            if field.type is bool and type(value) is not bool:
                raise BadInput(f"config: {name} must be true or false, got {str(value)[:40]}")

    @staticmethod
    def from_config(config: Mapping[str, Any]) -> "Geometry":
        """Geometry of a Hugging Face config, nested `text_config` or flat. Raises BadInput naming what is missing or wrong."""
        try:
            return Geometry._from_config(config)
        except BadInput:
            raise
        except (TypeError, ValueError, AttributeError, IndexError, ZeroDivisionError) as error:
            raise BadInput(f"this config is not a Qwen4Exp text config: {error}") from None

    @staticmethod
    def _from_config(config: Mapping[str, Any]) -> "Geometry":
        text = {**config, **config.get("text_config", {})}
        rope = text.get("rope_parameters") or {}
        num_layers = text.get("num_hidden_layers", 0)
        if num_layers > _MOST_LAYERS:
            raise BadInput(f"config: num_hidden_layers must be at most {_MOST_LAYERS}, got {str(num_layers)[:40]}")
        interval = text.get("full_attention_interval", 4)
        kinds = text.get("layer_types") or [
            INDEXED_ATTENTION if (i + 1) % interval == 0 else LINEAR_ATTENTION for i in range(num_layers)
        ]
        quantization = text.get("quantization") or text.get("quantization_config") or {}
        derived = {
            "layer_types": tuple(_LAYER_TYPE_NAMES.get(kind, kind) for kind in kinds),
            "ple_layer_ids": tuple(text.get("ple_layer_ids") or ()),
            "rope_theta": rope.get("rope_theta", text.get("rope_theta", 1e7)),
            "partial_rotary_factor": rope.get("partial_rotary_factor", text.get("partial_rotary_factor", 0.25)),
            "codec": Codec(bits=quantization.get("bits", 4), group_size=quantization.get("group_size", 64)),
        }
        names = {field.name for field in fields(Geometry)}
        values = {name: text[name] for name in names if text.get(name) is not None} | derived
        if isinstance(values.get("eos_token_id"), list):
            values["eos_token_id"] = values["eos_token_id"][0]
        return Geometry(**values)

    @staticmethod
    def from_folder(folder: Path) -> "Geometry":
        """Geometry of the checkpoint or store in `folder` (its `config.json`). Raises BadInput when there is none."""
        path = Path(folder) / "config.json"
        if not path.exists():
            raise BadInput(f"no config.json in {folder}: not a checkpoint or store folder")
        return Geometry.from_config(read_json_object(path))

    # ---- routed experts -------------------------------------------------------------------------------------------

    @property
    def expert_parameters(self) -> int:
        """Parameters of one routed expert: gate, up and down."""
        return 3 * self.hidden_size * self.moe_intermediate_size

    @property
    def routed_parameter_uses_per_token(self) -> int:
        """Routed parameters that one token multiplies by, over all layers."""
        return self.num_hidden_layers * self.num_experts_per_tok * self.expert_parameters

    def component_shape(self, component: str) -> tuple[int, int]:
        """`(output, input)` of a record's component."""
        wide, narrow = self.hidden_size, self.moe_intermediate_size
        return (wide, narrow) if component == DOWN else (narrow, wide)

    def component_bytes(self, component: str) -> int:
        """Stored bytes of one component of one expert."""
        return self.codec.matrix_bytes(*self.component_shape(component))

    @property
    def record_bytes(self) -> int:
        """Stored bytes of one expert's record."""
        return sum(self.component_bytes(component) for component in COMPONENTS)

    @property
    def num_expert_layers(self) -> int:
        """Layers with routed experts, the MTP head's included."""
        return self.num_hidden_layers + self.mtp_num_hidden_layers

    @property
    def demand_bytes_per_token(self) -> int:
        """Record bytes that one token selects when nothing is cached."""
        return self.num_hidden_layers * self.num_experts_per_tok * self.record_bytes

    # ---- n-gram (PLE) rows ----------------------------------------------------------------------------------------

    @property
    def ple_layers(self) -> tuple[int, ...]:
        """Zero-based indices of the layers that read n-gram rows."""
        return tuple(i - 1 for i in self.ple_layer_ids)

    @property
    def ple_heads(self) -> int:
        """Rows that one token reads in one PLE layer."""
        return (self.ngram_size - 1) * self.heads_per_ngram

    @property
    def ple_row_width(self) -> int:
        """Values in one n-gram row."""
        return self.ple_embed_dim // self.ple_heads

    @cached_property
    def _ple_primes(self) -> tuple[int, ...]:
        primes: list[int] = []
        candidate = self.ngram_vocab_size_base
        while len(primes) < len(self.ple_layer_ids) * self.ple_heads:
            if _is_prime(candidate):
                primes.append(candidate)
            candidate += 1
        return tuple(primes)

    def ple_head_sizes(self, position: int) -> tuple[int, ...]:
        """Rows of each head: consecutive primes; `position` is the one within `ple_layer_ids`, not the layer index."""
        return self._ple_primes[position * self.ple_heads : (position + 1) * self.ple_heads]

    def ple_num_rows(self, position: int) -> int:
        """Rows of the table of the PLE layer at `position` in `ple_layer_ids`, padding included."""
        divisor = self.make_ngram_vocab_size_divisible_by
        return math.ceil(sum(self.ple_head_sizes(position)) / divisor) * divisor

    def ple_multipliers(self, position: int) -> tuple[int, ...]:
        """Odd hash multipliers below 2^63; integers always (a float would round them)."""
        half = max(1, ((1 << 63) - 1) // self.vocab_size // 2)
        seed = self.seed + 10007 * position
        return tuple(
            2 * (_split_mix64((seed + 0x9E3779B97F4A7C15 * (i + 1)) & _MASK64) % half) + 1 for i in range(self.ngram_size)
        )

    # ---- sequence state -------------------------------------------------------------------------------------------

    @property
    def num_gdn_layers(self) -> int:
        """Gated-delta-net layers of the trunk."""
        return self.layer_types.count(LINEAR_ATTENTION)

    @property
    def num_qsa_layers(self) -> int:
        """Indexed-attention layers of the trunk."""
        return self.layer_types.count(INDEXED_ATTENTION)

    @property
    def gdn_state_bytes(self) -> int:
        """float32 recurrent state of one sequence over all GDN layers."""
        return 4 * self.num_gdn_layers * self.linear_num_value_heads * self.linear_key_head_dim * self.linear_value_head_dim

    def kv_bytes_per_token(self, bytes_per_value: int = 2) -> int:
        """Keys, values and index keys of one token over all QSA layers, at `bytes_per_value` (2: bf16)."""
        values = 2 * self.num_key_value_heads * self.head_dim + self.indexer_head_dim
        return self.num_qsa_layers * values * bytes_per_value

    # ---- trunk ----------------------------------------------------------------------------------------------------

    def parameters_by_owner(self) -> dict[str, int]:
        """Parameters by owner; the values sum to the whole text model, the MTP head included."""
        wide = self.hc_count * self.hidden_size
        hc_mix = wide + 2 * self.hc_lowrank * wide
        hyper = hc_mix + self.hc_count * wide
        key, value = (
            self.linear_num_key_heads * self.linear_key_head_dim,
            self.linear_num_value_heads * self.linear_value_head_dim,
        )
        mixed = 2 * key + value
        gdn = (
            self.hidden_size * (mixed + 2 * value + 2 * self.linear_num_value_heads)
            + mixed * self.linear_conv_kernel_dim
            + 2 * self.linear_num_value_heads
            + self.linear_value_head_dim
        )
        heads = self.num_attention_heads * self.head_dim
        qsa = (
            self.hidden_size
            * (3 * heads + 2 * self.num_key_value_heads * self.head_dim + (self.indexer_n_heads + 1) * self.indexer_head_dim)
            + 2 * self.head_dim
            + 2 * self.indexer_head_dim
        )
        shared = 3 * self.hidden_size * self.shared_expert_intermediate_size + self.hidden_size
        ple = wide * self.ple_embed_dim + self.hidden_size * self.ple_embed_dim + (3 + self.ple_conv_kernel_size) * wide
        mtp = 2 * self.hidden_size**2 + self.hidden_size + wide
        layers = self.num_expert_layers
        return {
            "embedding": self.vocab_size * self.hidden_size,
            "head": self.vocab_size * self.hidden_size,
            "gdn": self.num_gdn_layers * gdn,
            "qsa": (self.num_qsa_layers + self.mtp_num_hidden_layers) * qsa,
            "hyper_connections": 2 * layers * hyper + (1 + self.mtp_num_hidden_layers) * hc_mix,
            "routers": layers * self.num_experts * self.hidden_size,
            "shared_experts": layers * shared,
            "ple_projections": len(self.ple_layer_ids) * ple,
            "mtp_projections": self.mtp_num_hidden_layers * mtp,
            "ple_tables": sum(self.ple_num_rows(j) for j in range(len(self.ple_layer_ids))) * self.ple_row_width,
            "routed_experts": layers * self.num_experts * self.expert_parameters,
        }


_FLASH_NEXT: dict[str, Any] = {
    # public config of Qwen/Qwen3.8-Flash-Next, revision de4b8e4d43b917e7706784d8bb445c9af86a3540
    "vocab_size": 248_320,
    "hidden_size": 2560,
    "num_hidden_layers": 48,
    "num_attention_heads": 24,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "moe_intermediate_size": 640,
    "shared_expert_intermediate_size": 640,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "hc_count": 4,
    "hc_lowrank": 320,
    "ple_layer_ids": [2],
    "ple_embed_dim": 2560,
    "ple_conv_kernel_size": 4,
    "ngram_size": 3,
    "heads_per_ngram": 8,
    "ngram_vocab_size_base": 20_000_000,
    "make_ngram_vocab_size_divisible_by": 128,
    "split_ngram_parts": 128,
    "indexer_n_heads": 4,
    "indexer_head_dim": 128,
    "indexer_budget": 2048,
    "indexer_compress_ratio": 4,
    "rope_theta": 1e7,
    "partial_rotary_factor": 0.25,
    "eos_token_id": 248_044,
    "mtp_num_hidden_layers": 1,
}

FLASH_NEXT = Geometry.from_config(_FLASH_NEXT)
"""Qwen3.8-Flash-Next, routed experts as MLX affine 4-bit with group 64."""


def slice_config(num_layers: int = 4) -> dict[str, Any]:
    """Config of profile `slice`: Flash-Next's records, trunk and PLE width, fewer layers, mini's tokenizer."""
    if num_layers < 2:
        raise BadInput(f"slice needs at least 2 layers (its PLE layer has index 1), got {num_layers}")
    return {
        **_FLASH_NEXT,
        "model_type": "qwen4_exp_text",
        "num_hidden_layers": num_layers,
        "full_attention_interval": 4,
        "vocab_size": 8192,
        "ngram_vocab_size_base": 125_000,
        "split_ngram_parts": 1,
        "eos_token_id": 0,
        "mtp_num_hidden_layers": 0,
        "quantization": {"bits": 4, "group_size": 64, "mode": "affine"},
    }
