"""Row ids of the n-gram (PLE) tables. Integers only: the multipliers have 63 bits and a float would round them."""

import numpy as np

from workbench.geometry import Geometry


class NgramContext:
    """The last `ngram_size - 1` tokens of a sequence; EOS fills the positions before its start."""

    def __init__(self, geometry: Geometry, tokens: tuple[int, ...] | None = None) -> None:
        self._geometry = geometry
        self.tokens = tokens or (geometry.eos_token_id,) * (geometry.ngram_size - 1)

    def after(self, tokens: np.ndarray) -> "NgramContext":
        """The context once `tokens [T]` have been seen."""
        history = (*self.tokens, *tokens.tolist())
        return NgramContext(self._geometry, history[len(history) - len(self.tokens) :])


def row_ids(geometry: Geometry, tokens: np.ndarray, context: NgramContext) -> dict[int, np.ndarray]:
    """Table rows `[T, heads]` (int64) that `tokens [T]` read after `context`, by layer index; known before any layer runs."""
    return {layer: layer_row_ids(geometry, position, tokens, context) for position, layer in enumerate(geometry.ple_layers)}


def layer_row_ids(geometry: Geometry, position: int, tokens: np.ndarray, context: NgramContext) -> np.ndarray:
    """Table rows `[T, heads]` (int64) of one layer that `tokens [T]` read after `context`.

    `position` is the layer's place within `ple_layer_ids`. A token looks back no further than to the last EOS before it.
    """
    history = np.concatenate([np.asarray(context.tokens, np.int64), np.asarray(tokens, np.int64)])
    first, eos = len(context.tokens), geometry.eos_token_id
    multipliers = np.array(geometry.ple_multipliers(position), np.int64)
    sizes = np.array(geometry.ple_head_sizes(position), np.int64).reshape(-1, geometry.heads_per_ngram)
    offsets = np.concatenate([[0], np.cumsum(sizes.ravel())[:-1]]).reshape(sizes.shape)
    mixed = history[first:] * multipliers[0]
    within = np.ones(len(tokens), bool)
    ids = []
    for back in range(1, geometry.ngram_size):
        earlier = history[first - back : len(history) - back]
        within &= earlier != eos
        mixed = mixed ^ (np.where(within, earlier, eos) * multipliers[back])
        ids.append(mixed[:, None] % sizes[back - 1] + offsets[back - 1])
    return np.concatenate(ids, axis=1)
