"""Causal depthwise convolution over tokens with carried state."""

import mlx.core as mx

from workbench.model.inputs import ConvolutionInputs
from workbench.model.state import SequenceState


class CausalConv:
    """One filter per channel over the current and earlier tokens, `dilation` apart.

    The state is the last `(taps - 1) * dilation` inputs, `[rows, channels]`, zero at the start of a sequence.
    """

    def __init__(self, weight: mx.array, name: str, dilation: int = 1) -> None:
        """`weight [channels, 1, taps]`, as torch keeps it, or `[channels, taps, 1]`, as MLX does: the same bytes.

        `name`: of the array in `SequenceState.arrays`.
        """
        self._taps = mx.contiguous(weight.reshape(len(weight), -1).T)
        self._name = name
        self._dilation = dilation

    def init_state(self, state: SequenceState) -> None:
        """Puts an empty history into `state`."""
        taps, channels = self._taps.shape
        state.arrays[self._name] = mx.zeros(((taps - 1) * self._dilation, channels))

    def __call__(self, x: mx.array, state: SequenceState) -> mx.array:
        """Inputs `[T, channels]` -> outputs `[T, channels]`; advances the history by T tokens."""
        taps, channels = self._taps.shape
        before = state.arrays[self._name]
        history = mx.concatenate([before, x])
        if len(history) == taps:
            windows = history[None]
        else:
            windows = mx.as_strided(history, (len(x), taps, channels), (channels, self._dilation * channels, 1))
        # contiguous: a long prefill's history would stay alive behind a mere view
        state.arrays[self._name] = mx.contiguous(history[len(x) :])
        if state.keeps(len(x)):
            state.keep(self._name, ConvolutionInputs(history, len(before)))
        return mx.sum(windows * self._taps, axis=1)
