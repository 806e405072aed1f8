"""A forward pass as a generator: tokens through the stages of every layer. The generator yields requests and is sent the answers.

It holds no engine, no reader and no log, so decode, tiles of a prompt, blocks that are verified and several requests are cases
of one loop (`workbench.runtime.engine`).
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from workbench.geometry import INDEXED_ATTENTION
from workbench.model.layer import Layer
from workbench.model.model import Model
from workbench.model.moe import Route
from workbench.model.state import SequenceState

PREFILL_TILE = 256
"""Tokens a prefill pass takes at once."""

Dispatch = Callable[..., None]
"""Hands arrays to the device."""
RunStage = Callable[[str, int, Callable[[], Any]], Any]
"""Computes a stage, given its name, its layer index (-1: before or after all layers) and its function."""


@dataclass(frozen=True, slots=True)
class RowsNeeded:
    """A layer needs its n-gram rows now; answered with float32 `[T, ple_embed_dim]`, heads side by side."""

    layer: int


@dataclass(frozen=True, slots=True)
class Tap:
    """Before attention: the wide residual `x [T, hc_count * H]`, behind the n-gram injection."""

    layer: int
    x: mx.array


@dataclass(frozen=True, slots=True)
class Routed:
    """The native router has chosen; answered with the chosen experts' values `[T, k, H]`."""

    layer: int
    route: Route


@dataclass(frozen=True, slots=True)
class Done:
    """The pass is over: logits of its rows `[T, vocab]`, or of its last row, dispatched."""

    logits: mx.array


StageRequest = RowsNeeded | Tap | Routed | Done
ForwardPass = Generator[StageRequest, Any, None]
"""Yields stages; is sent the answers to `RowsNeeded` and `Routed`."""


def run_untimed(name: str, layer: int, compute: Callable[[], Any]) -> Any:
    """The result of `compute()`: a stage without a clock."""
    return compute()


def forward(
    model: Model,
    state: SequenceState,
    tokens: np.ndarray,
    *,
    num_logits: int | None = None,
    taps: bool = False,
    dispatch: Dispatch = mx.async_eval,
    run_stage: RunStage = run_untimed,
) -> ForwardPass:
    """Runs `tokens [T]` through the model and advances `state`.

    Args:
        model: the stages.
        state: of the sequence, inside a transaction or not.
        tokens: ids `[T]`.
        num_logits: last rows whose logits are computed; by default all.
        taps: whether `Tap` is yielded.
        dispatch: takes arrays that the device may begin with.
        run_stage: computes each stage.
    """
    x = run_stage("head", -1, lambda: model.embed(mx.array(tokens)))
    for layer in model.layers:
        if layer.has_ple:
            x = _inject(layer, x, (yield RowsNeeded(layer.index)), state, run_stage)
        if taps:
            yield Tap(layer.index, x)
        x = yield from _run_layer(layer, x, state, dispatch, run_stage)
        # the next layer's graph is built while this one computes
        dispatch(x)
    last = x if num_logits is None else x[-num_logits:]
    logits = run_stage("head", -1, lambda: model.logits(last))
    followed = model.follow(tokens, x, state) if state.follows_mtp else ()
    state.advance(tokens, x, logits)
    dispatch(logits)
    if followed:
        # behind the logits, for which the host waits
        dispatch(*followed)
    yield Done(logits)


def _inject(layer: Layer, x: mx.array, rows: mx.array, state: SequenceState, run_stage: RunStage) -> mx.array:
    """The wide residual with a layer's n-gram rows."""
    return run_stage("ple", layer.index, lambda: layer.inject_ple(x, rows, state))


def _run_layer(
    layer: Layer, x: mx.array, state: SequenceState, dispatch: Dispatch, run_stage: RunStage
) -> Generator[Routed, mx.array, mx.array]:
    """Attention, router, experts and injection of one layer."""
    name, index = "qsa" if layer.kind == INDEXED_ATTENTION else "gdn", layer.index
    attended = run_stage(name, index, lambda: layer.attend(x, state))
    route = run_stage("router", index, lambda: layer.route(attended))
    dispatch(route.ids, route.weights)
    shared = run_stage("shared", index, lambda: layer.shared(route.hidden))
    # runs while the host reads the ids and loads the experts that they name
    dispatch(shared)
    values = yield Routed(index, route)
    return run_stage("down", index, lambda: layer.combine(attended, route, values, shared))


def draft(model: Model, state: SequenceState, wide: mx.array, next_tokens: np.ndarray) -> ForwardPass:
    """One MTP step on T positions: logits `[T, vocab]` of the tokens after `next_tokens`.

    `wide [T, hc_count * H]` is the residual behind the last layer at each position, `next_tokens [T]` the token after it.
    Raises ValueError when the checkpoint has no MTP head.
    """
    if model.mtp is None:
        raise ValueError("this checkpoint has no MTP head")
    x = model.mtp.join(wide, model.embed_narrow(mx.array(next_tokens)))
    x = yield from _run_layer(model.mtp.layer, x, state, mx.async_eval, run_untimed)
    yield Done(model.draft_logits(x))
