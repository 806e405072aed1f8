"""The native multi-token-prediction head: from the wide residual at token t and token t+1 it predicts token t+2."""

import mlx.core as mx

from workbench.geometry import INDEXED_ATTENTION, Geometry
from workbench.model.hyper import HyperConnection
from workbench.model.layer import Layer
from workbench.model.norm import rms_norm
from workbench.model.rope import Rotary
from workbench.model.state import SequenceState
from workbench.model.weights import Weights, joined


class Mtp:
    """The MTP head: a QSA layer of its own between two projections and the shared output head.

    Its experts are those of layer `num_hidden_layers`. Its cache must see every token from the sequence's first on: a step's
    place in the cache is its position.
    """

    def __init__(self, geometry: Geometry, weights: Weights, rotary: Rotary, index_rotary: Rotary) -> None:
        self._streams = geometry.hc_count
        eps = geometry.rms_norm_eps
        self._embedding_norm = rms_norm(1 + weights.array("pre_fc_norm_embedding.weight"), eps)
        # one norm over all streams, unlike the hyper-connections' norm of each
        self._hidden_norm = rms_norm(1 + weights.array("pre_fc_norm_hidden.weight"), eps)
        self._from_embedding = joined(weights.rows("fc_embedding"))
        self._from_hidden = joined(weights.rows("fc_hidden"))
        layer = weights.below("layers.0")
        self.layer = Layer(geometry, layer, geometry.num_hidden_layers, INDEXED_ATTENTION, rotary, index_rotary)
        self.mixer = HyperConnection(geometry, weights.below("hyper_connection_mixer"), injects=False)

    def join(self, wide: mx.array, embedded: mx.array) -> mx.array:
        """Input of the layer, `[T, C*H]`, from `wide [T, C*H]` at t and the embedding `[T, H]` of token t+1."""
        streams = self._hidden_norm(wide).reshape(len(wide), self._streams, -1) @ self._from_hidden
        return (streams + (self._embedding_norm(embedded) @ self._from_embedding)[:, None]).reshape(wide.shape)

    def append(self, wide: mx.array, embedded: mx.array, state: SequenceState) -> None:
        """Appends T pairs to the cache without predicting; arguments as `join`'s."""
        self.layer.append(self.join(wide, embedded), state)
