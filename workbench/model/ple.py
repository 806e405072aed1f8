"""Per-layer n-gram embeddings: hashed lexical features injected into every hyper-connection stream.

Shapes: T tokens, C streams, H hidden, E embedding (`ple_embed_dim`, the heads' rows side by side).
"""

import math

import mlx.core as mx

from workbench.geometry import Geometry
from workbench.model.conv import CausalConv
from workbench.model.norm import rms_norm
from workbench.model.state import SequenceState
from workbench.model.weights import Weights, joined

_SMALLEST_GATE = mx.array(1e-6)


class NgramInjection:
    """The PLE block of one layer: from n-gram rows to the features that are injected."""

    def __init__(self, geometry: Geometry, weights: Weights, layer: int) -> None:
        self._streams, self._hidden = self._shape = (geometry.hc_count, geometry.hidden_size)
        self._project = joined(weights.rows("key_proj"), weights.rows("value_proj"))
        self._key_norm, self._query_norm, self._conv_norm = (
            rms_norm(1 + weights.array(f"norm_{name}.weight").reshape(self._shape), geometry.rms_norm_eps)
            for name in ("key", "query", "conv")
        )
        self._conv = CausalConv(weights.array("conv1d.weight"), f"ple.{layer}.conv", geometry.ngram_size)

    def init_state(self, state: SequenceState) -> None:
        """Puts this block's empty state into `state`."""
        self._conv.init_state(state)

    def __call__(self, x: mx.array, rows: mx.array, state: SequenceState) -> mx.array:
        """Wide residual `[T, C*H]` and rows `[T, E]` -> wide residual; advances the convolution by T tokens."""
        keys, values = mx.split(rows @ self._project, [self._streams * self._hidden], axis=1)
        agreement = self._key_norm(keys.reshape(-1, *self._shape)) * self._query_norm(x.reshape(-1, *self._shape))
        score = mx.sum(agreement, axis=-1, keepdims=True) / math.sqrt(self._hidden)
        score = mx.sqrt(mx.maximum(mx.abs(score), _SMALLEST_GATE)) * mx.sign(score)
        gated = mx.sigmoid(score) * values[:, None, :]
        normed = self._conv_norm(gated).reshape(x.shape)
        local = self._conv(normed, state)
        return x + gated.reshape(x.shape) + local * mx.sigmoid(local)
