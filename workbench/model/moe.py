"""The router and the gated shared expert of one layer.

Shapes: T tokens, H hidden, E experts, k chosen per token, I shared intermediate.
"""

from dataclasses import dataclass

import mlx.core as mx

from workbench.geometry import Geometry
from workbench.model.experts import swiglu
from workbench.model.weights import Weights, joined


@dataclass(frozen=True, slots=True)
class Route:
    """The native router's decision for T tokens of one layer, with what the later stages need."""

    hidden: mx.array
    """`[T, H]`: input of routed and shared experts."""
    inject: mx.array
    """`[T, C]`: weights by which the block's output is injected into each stream."""
    ids: mx.array
    """`[T, k]` uint32, highest weight first."""
    weights: mx.array
    """`[T, k]` float32, in the order of `ids`."""


class Router:
    """Top-k of a softmax over all experts."""

    def __init__(self, geometry: Geometry, weights: Weights) -> None:
        self._top_k = geometry.num_experts_per_tok
        self._renormalise = geometry.norm_topk_prob
        self._project = joined(weights.rows("gate"))

    def choose(self, logits: mx.array) -> mx.array:
        """Ids `[T, k]` of the largest of `logits [T, E]`, largest first; among equals the lower id."""
        return mx.argsort(-logits, axis=-1)[:, : self._top_k]

    def __call__(self, hidden: mx.array) -> tuple[mx.array, mx.array]:
        """`[T, H]` -> ids and weights, each `[T, k]`."""
        logits = hidden @ self._project
        ids = self.choose(logits)
        if self._renormalise:
            # a softmax of the chosen equals the renormalised softmax of all
            return ids, mx.softmax(mx.take_along_axis(logits, ids, axis=-1), axis=-1)
        return ids, mx.take_along_axis(mx.softmax(logits, axis=-1), ids, axis=-1)


class SharedExpert:
    """The expert that every token uses, behind its own gate."""

    def __init__(self, weights: Weights) -> None:
        gate, up = weights.rows("shared_expert.gate_proj"), weights.rows("shared_expert.up_proj")
        self._width = len(gate)
        self._project = joined(gate, up, weights.rows("shared_expert_gate"))
        self._down = joined(weights.rows("shared_expert.down_proj"))

    def __call__(self, hidden: mx.array) -> mx.array:
        """`[T, H]` -> `[T, H]`."""
        gate, up, own_gate = mx.split(hidden @ self._project, [self._width, 2 * self._width], axis=1)
        return mx.sigmoid(own_gate) * (swiglu(gate, up) @ self._down)
