"""Hyper-connections (after arXiv:2409.19606) mix a layer's input from the wide residual and inject its output back.

Shapes: T tokens, C streams (`hc_count`), H hidden, R low rank; the wide residual is `[T, C*H]`, stream after stream.
"""

import mlx.core as mx

from workbench.geometry import Geometry
from workbench.model.norm import rms_norm
from workbench.model.weights import Weights, joined


class HyperConnection:
    """The gated mix of the streams before a block, and the weights by which the block's output is injected into each stream."""

    def __init__(self, geometry: Geometry, weights: Weights, *, injects: bool = True) -> None:
        """`injects`: false after the last layer, where nothing is injected."""
        self._shape = (geometry.hc_count, geometry.hidden_size)
        self._rank = geometry.hc_lowrank
        self._norm = rms_norm(1 + weights.array("hc_norm.weight").reshape(self._shape), geometry.rms_norm_eps)
        names = ["input_mix_weight_down", "block_inject_weight"] if injects else ["input_mix_weight_down"]
        # the 1/C of both projections is folded into them
        self._down = joined(*(weights.rows(name) / geometry.hc_count for name in names))
        self._up = joined(weights.rows("input_mix_weight_up"))

    def mix(self, x: mx.array) -> tuple[mx.array, mx.array]:
        """Wide `[T, C*H]` -> hidden `[T, H]` and injection weights `[T, C]` (`[T, 0]` where nothing is injected)."""
        streams = self._norm(x.reshape(-1, *self._shape))
        projected = streams.reshape(x.shape) @ self._down
        low = projected[:, : self._rank]
        gate = mx.sigmoid((low * mx.sigmoid(low)) @ self._up)
        mixed = mx.mean(gate.reshape(streams.shape) * streams, axis=1)
        return mixed, 2 * mx.sigmoid(projected[:, self._rank :])


def inject(x: mx.array, output: mx.array, weights: mx.array) -> mx.array:
    """Adds a block's `output [T, H]` to every stream of `x [T, C*H]` by its `weights [T, C]`."""
    return x + (output[:, None, :] * weights[:, :, None]).reshape(x.shape)
