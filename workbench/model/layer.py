"""One decoder layer as stages, so that a runtime can read bytes between them."""

import mlx.core as mx

from workbench.geometry import INDEXED_ATTENTION, Geometry
from workbench.model.gdn import GatedDeltaNet
from workbench.model.hyper import HyperConnection, inject
from workbench.model.moe import Route, Router, SharedExpert
from workbench.model.ple import NgramInjection
from workbench.model.qsa import IndexedAttention
from workbench.model.rope import Rotary
from workbench.model.state import SequenceState
from workbench.model.weights import Weights


class Layer:
    """Stages in order: `inject_ple` (where `has_ple`), `attend`, `route`, routed experts and `shared`, `combine`.

    `x` is the wide residual `[T, hc_count * hidden]` of the tokens in flight.
    """

    def __init__(self, geometry: Geometry, weights: Weights, index: int, kind: str, rotary: Rotary, index_rotary: Rotary) -> None:
        self.index = index
        self.kind = kind
        self._attention: GatedDeltaNet | IndexedAttention
        if kind == INDEXED_ATTENTION:
            self._attention = IndexedAttention(geometry, weights.below("self_attn"), index, rotary, index_rotary)
        else:
            self._attention = GatedDeltaNet(geometry, weights.below("linear_attn"), index)
        self._ple = NgramInjection(geometry, weights.below("ple"), index) if index in geometry.ple_layers else None
        self._attention_connection = HyperConnection(geometry, weights.below("attn_hyper_connection"))
        self._mlp_connection = HyperConnection(geometry, weights.below("mlp_hyper_connection"))
        self._router = Router(geometry, weights.below("mlp"))
        self._shared = SharedExpert(weights.below("mlp"))

    @property
    def has_ple(self) -> bool:
        """Whether n-gram rows enter before this layer."""
        return self._ple is not None

    def init_state(self, state: SequenceState) -> None:
        """Puts this layer's empty state into `state`."""
        self._attention.init_state(state)
        if self._ple is not None:
            self._ple.init_state(state)

    def inject_ple(self, x: mx.array, rows: mx.array, state: SequenceState) -> mx.array:
        """Adds the n-gram features of `rows [T, ple_embed_dim]`, heads side by side. Raises ValueError if not `has_ple`."""
        if self._ple is None:
            raise ValueError(f"layer {self.index} reads no n-gram rows")
        return self._ple(x, rows, state)

    def attend(self, x: mx.array, state: SequenceState) -> mx.array:
        """Attention with its hyper-connection; advances this layer's state."""
        hidden, weights = self._attention_connection.mix(x)
        return inject(x, self._attention(hidden, state), weights)

    def append(self, x: mx.array, state: SequenceState) -> None:
        """Appends T tokens to this layer's cache without attending. Raises ValueError for a layer without a QSA cache."""
        if not isinstance(self._attention, IndexedAttention):
            raise ValueError(f"layer {self.index} has no QSA cache")
        hidden, _ = self._attention_connection.mix(x)
        self._attention.append(hidden, state)

    def route(self, x: mx.array) -> Route:
        """The native router's choice of experts for `x`."""
        hidden, weights = self._mlp_connection.mix(x)
        return Route(hidden, weights, *self._router(hidden))

    def shared(self, hidden: mx.array) -> mx.array:
        """The gated shared expert on `Route.hidden`: `[T, H]`."""
        return self._shared(hidden)

    def combine(self, x: mx.array, route: Route, expert_outputs: mx.array, shared: mx.array) -> mx.array:
        """Sums `expert_outputs [T, k, H]` in rank order with the shared expert's and injects the result."""
        routed = mx.sum(expert_outputs * route.weights[:, :, None], axis=1)
        return inject(x, routed + shared, route.inject)
