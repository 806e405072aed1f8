"""The main loop: tokens through the stages of every layer, expert values and n-gram rows from wherever they live."""

from collections.abc import Callable
from typing import Protocol

import mlx.core as mx
import numpy as np

from workbench.model.layer import Layer
from workbench.model.model import Model
from workbench.model.moe import Route
from workbench.model.state import SequenceState

PREFILL_TILE = 256
"""Tokens a prefill pass takes at once."""

RouteObserver = Callable[[int, Route], None]
"""Called with the layer index and the native router's choice, before the experts run."""

Send = Callable[..., None]
"""Sends arrays off to be computed."""


class ExpertSource(Protocol):
    """Where routed experts' values come from."""

    def start(self, num_tokens: int) -> None:
        """Announces a pass over `num_tokens`, before the first layer runs."""

    def run(self, layer: int, hidden: mx.array, ids: mx.array) -> mx.array:
        """The experts `ids [T, k]` of `layer` on `hidden [T, H]`: `[T, k, H]`."""


class RowSource(Protocol):
    """Where n-gram rows come from."""

    def start(self, layer: int, row_ids: np.ndarray) -> None:
        """Announces the rows `[T, heads]` that `layer` will read, before the first layer runs."""

    def rows(self, layer: int) -> mx.array:
        """The announced rows, heads side by side: float32 `[T, ple_embed_dim]`."""


def forward(
    model: Model,
    experts: ExpertSource,
    rows: RowSource,
    state: SequenceState,
    tokens: np.ndarray,
    *,
    num_logits: int | None = None,
    observe: RouteObserver | None = None,
    send: Send = mx.async_eval,
) -> mx.array:
    """Runs `tokens [T]` through the model and advances `state`: logits `[T, vocab]`, or of the last `num_logits` tokens."""
    for layer_index, ids in model.row_ids(tokens, state).items():
        rows.start(layer_index, ids)
    experts.start(len(tokens))
    x = model.embed(mx.array(tokens))
    for layer in model.layers:
        if layer.has_ple:
            x = layer.inject_ple(x, rows.rows(layer.index), state)
        x = run_layer(layer, experts, x, state, observe, send)
        # the next layer's graph is built while this one computes
        send(x)
    logits = model.logits(x if num_logits is None else x[-num_logits:])
    state.advance(tokens, x, logits)
    return logits


def run_layer(
    layer: Layer,
    experts: ExpertSource,
    x: mx.array,
    state: SequenceState,
    observe: RouteObserver | None = None,
    send: Send = mx.async_eval,
) -> mx.array:
    """Attention, router, experts and injection of one layer."""
    x = layer.attend(x, state)
    route = layer.route(x)
    send(route.ids, route.weights)
    shared = layer.shared(route.hidden)
    # runs while the host reads the ids and fetches what they name
    send(shared)
    if observe is not None:
        observe(layer.index, route)
    return layer.combine(x, route, experts.run(layer.index, route.hidden, route.ids), shared)


def prefill(
    model: Model,
    experts: ExpertSource,
    rows: RowSource,
    state: SequenceState,
    tokens: np.ndarray,
    *,
    tile: int = PREFILL_TILE,
    observe: RouteObserver | None = None,
) -> mx.array:
    """Runs a prompt `tokens [T]` in tiles: logits `[1, vocab]` of its last token."""
    for start in range(0, len(tokens), tile):
        logits = forward(model, experts, rows, state, tokens[start : start + tile], num_logits=1, observe=observe)
        mx.eval(logits)
    return logits


def draft(model: Model, experts: ExpertSource, state: SequenceState, wide: mx.array, next_tokens: np.ndarray) -> mx.array:
    """One MTP step on T positions: logits `[T, vocab]` of the tokens after `next_tokens`.

    `wide [T, hc_count * H]` is the residual behind the last layer at each position, `next_tokens [T]` the token after it.
    Raises ValueError when the checkpoint has no MTP head.
    """
    if model.mtp is None:
        raise ValueError("this checkpoint has no MTP head")
    x = model.mtp.join(wide, model.embed_narrow(mx.array(next_tokens)))
    return model.draft_logits(run_layer(model.mtp.layer, experts, x, state))
