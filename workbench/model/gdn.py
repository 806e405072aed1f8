"""Gated delta net (arXiv:2412.06464): linear attention with a recurrent state.

Shapes: T tokens, K key heads, V value heads, D dimensions of a head.
"""

import mlx.core as mx

from workbench.geometry import Geometry
from workbench.model.conv import CausalConv
from workbench.model.inputs import DeltaInputs
from workbench.model.norm import Norm, rms_norm
from workbench.model.state import SequenceState
from workbench.model.weights import Weights, joined

_QK_EPS = 1e-6
"""Epsilon in the L2 norm of queries and keys; fixed in transformers' class, independent of `rms_norm_eps`."""

_ZERO = mx.array(0.0)


class GatedDeltaNet:
    """One gated-delta-net block."""

    def __init__(self, geometry: Geometry, weights: Weights, layer: int) -> None:
        self._key_heads, self._value_heads = geometry.linear_num_key_heads, geometry.linear_num_value_heads
        self._key_dim, self._value_dim = geometry.linear_key_head_dim, geometry.linear_value_head_dim
        self._project = joined(*(weights.rows(f"in_proj_{name}") for name in ("qkv", "z", "b", "a")))
        self._conv = CausalConv(weights.array("conv1d.weight"), f"gdn.{layer}.conv")
        scale = mx.array([self._key_dim**-0.5] * self._key_heads + [1.0] * self._key_heads)
        self._qk_norm = Norm(scale[:, None], _QK_EPS)
        self._rate = -mx.exp(weights.array("A_log"))
        self._dt_bias = weights.array("dt_bias")
        self._norm = rms_norm(weights.array("norm.weight"), geometry.rms_norm_eps)
        self._sigmoid_gate = geometry.output_gate_type == "sigmoid"
        self._out = joined(weights.rows("out_proj"))
        self._name = f"gdn.{layer}.recurrent"

    def init_state(self, state: SequenceState) -> None:
        """Puts this block's empty state into `state`."""
        self._conv.init_state(state)
        state.arrays[self._name] = mx.zeros((1, self._value_heads, self._value_dim, self._key_dim))

    def __call__(self, hidden: mx.array, state: SequenceState) -> mx.array:
        """`[T, H]` -> `[T, H]`; advances the state by T tokens."""
        num_tokens = len(hidden)
        key_width, value_width = self._key_heads * self._key_dim, self._value_heads * self._value_dim
        gate_stop = 2 * (key_width + value_width)
        mixed, gate, beta, rate = mx.split(
            hidden @ self._project, [gate_stop - value_width, gate_stop, gate_stop + self._value_heads], axis=1
        )
        mixed = self._conv(mixed, state)
        mixed = mixed * mx.sigmoid(mixed)
        qk = self._qk_norm(mixed[:, : 2 * key_width].reshape(1, num_tokens, 2 * self._key_heads, self._key_dim))
        before, keys = state.arrays[self._name], qk[:, :, self._key_heads :]
        values = mixed[:, 2 * key_width :].reshape(1, num_tokens, self._value_heads, self._value_dim)
        decay = mx.exp(self._rate * mx.logaddexp(rate + self._dt_bias, _ZERO))[None]
        beta = mx.sigmoid(beta)[None]
        output, state.arrays[self._name] = mx.fast.gated_delta_update(
            qk[:, :, : self._key_heads], keys, values, decay, beta, before
        )
        if state.keeps(num_tokens):
            state.keep(self._name, DeltaInputs(before, keys, values, decay, beta))
        gate = mx.sigmoid(gate) if self._sigmoid_gate else gate * mx.sigmoid(gate)
        return (self._norm(output).reshape(num_tokens, value_width) * gate) @ self._out
