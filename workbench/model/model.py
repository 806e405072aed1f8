"""Qwen4Exp (text) stage by stage: one sequence, T tokens at a time, float32.

Routed experts and n-gram tables are not part of the model; the caller of the stages supplies their values.
"""

from collections.abc import MutableMapping

import mlx.core as mx
import numpy as np

from workbench.geometry import Geometry
from workbench.model.hyper import HyperConnection
from workbench.model.layer import Layer
from workbench.model.mtp import Mtp
from workbench.model.rope import Rotary
from workbench.model.state import SequenceState
from workbench.model.weights import Weights, joined


class Model:
    """The trunk, its head and, where the checkpoint has one, the MTP head."""

    def __init__(self, geometry: Geometry, weights: MutableMapping[str, mx.array]) -> None:
        """`weights`: trunk tensors by Hugging Face names, taken out as read. Raises BadInput naming the first one missing."""
        self.geometry = geometry
        tensors = Weights(weights)
        rotaries = Rotary(geometry, geometry.head_dim), Rotary(geometry, geometry.indexer_head_dim)
        # as stored: a lookup converts its few rows
        self._embedding = tensors.stored("model.embed_tokens.weight")
        mx.eval(self._embedding)
        self.layers = tuple(
            Layer(geometry, tensors.below(f"model.layers.{index}"), index, kind, *rotaries)
            for index, kind in enumerate(geometry.layer_types)
        )
        self._mixer = HyperConnection(geometry, tensors.below("model.hyper_connection_mixer"), injects=False)
        self._head = joined(tensors.rows("lm_head"))
        # converted checkpoints often drop the head that their config names
        has_mtp = geometry.mtp_num_hidden_layers and "mtp.fc_hidden.weight" in tensors
        self.mtp = Mtp(geometry, tensors.below("mtp"), *rotaries) if has_mtp else None

    def new_state(self, *, follow_mtp: bool = False) -> SequenceState:
        """The state of an empty sequence.

        `follow_mtp`: passes advance the MTP head's cache too, so that drafts can start at any position. Raises ValueError when
        there is no MTP head.
        """
        if follow_mtp and self.mtp is None:
            raise ValueError("this checkpoint has no MTP head")
        state = SequenceState(self.geometry, follow_mtp=follow_mtp)
        for layer in (*self.layers, *([self.mtp.layer] if self.mtp else [])):
            layer.init_state(state)
        return state

    def embed_narrow(self, tokens: mx.array) -> mx.array:
        """Tokens `[T]` -> embeddings `[T, H]`."""
        return self._embedding[tokens].astype(mx.float32)

    def embed(self, tokens: mx.array) -> mx.array:
        """Tokens `[T]` -> wide residual `[T, hc_count * H]`."""
        return mx.tile(self.embed_narrow(tokens), (1, self.geometry.hc_count))

    def logits(self, x: mx.array) -> mx.array:
        """Wide residual `[T, hc_count * H]` -> logits `[T, vocab]`."""
        return self._mixer.mix(x)[0] @ self._head

    def follow(self, tokens: np.ndarray, wide: mx.array, state: SequenceState) -> tuple[mx.array, ...]:
        """Advances the MTP head's cache after a pass of the trunk, before `state.advance`: the arrays to dispatch.

        A pair is the wide residual at one position and the token at the next. The first token of a sequence completes no pair:
        the cache holds one pair fewer than the sequence tokens. Does nothing when `state` doesn't follow the trunk.

        Args:
            tokens: of the pass `[T]`.
            wide: residual behind the last layer `[T, hc_count * H]`.
            state: of the sequence; its position and last wide residual are those before the pass.
        """
        if self.mtp is None or not state.follows_mtp:
            return ()
        state.forget_drafts()
        if state.position == 0:
            earlier, tokens = wide[:-1], tokens[1:]
        elif len(tokens) == 1:
            earlier = state.arrays["wide"]
        else:
            earlier = mx.concatenate([state.arrays["wide"], wide[:-1]])
        if len(tokens):
            self.mtp.append(earlier, self.embed_narrow(mx.array(tokens)), state)
        return state.caches[self.mtp.layer.index].buffers()

    def draft_logits(self, x: mx.array) -> mx.array:
        """The MTP layer's wide residual -> logits `[T, vocab]` of the token after next. Raises ValueError without a head."""
        if self.mtp is None:
            raise ValueError("this checkpoint has no MTP head")
        return self.mtp.mixer.mix(x)[0] @ self._head
