"""Causal depthwise convolution over tokens with carried state."""

import mlx.core as mx


class CausalConv:
    """One filter a channel over the current and earlier tokens, `dilation` apart.

    The state is the last `(taps - 1) * dilation` inputs, `[rows, channels]`, zero at the start of a sequence.
    """

    def __init__(self, weight: mx.array, dilation: int = 1) -> None:
        # checkpoints keep torch's [channels, 1, taps]
        self._taps = mx.contiguous(weight.squeeze(1).T)
        self._dilation = dilation

    @property
    def state_shape(self) -> tuple[int, int]:
        """`(rows, channels)` of the state."""
        taps, channels = self._taps.shape
        return ((taps - 1) * self._dilation, channels)

    def __call__(self, x: mx.array, state: mx.array) -> tuple[mx.array, mx.array]:
        """Inputs `[T, channels]` -> outputs `[T, channels]` and the next state."""
        taps, channels = self._taps.shape
        history = mx.concatenate([state, x])
        if len(history) == taps:
            windows = history[None]
        else:
            windows = mx.as_strided(history, (len(x), taps, channels), (channels, self._dilation * channels, 1))
        # contiguous: a long prefill's history would stay alive behind a mere view
        return mx.sum(windows * self._taps, axis=1), mx.contiguous(history[len(x) :])
