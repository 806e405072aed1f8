"""Rotary positions: tables that equal those of transformers except for rounding, grown as sequences grow."""

import mlx.core as mx
import numpy as np

from workbench.geometry import Geometry

_GROWTH = 1024


class Rotary:
    """Rotates the first `head_dim * partial_rotary_factor` dimensions of heads `width` wide."""

    def __init__(self, geometry: Geometry, width: int) -> None:
        self._rotated = int(geometry.head_dim * geometry.partial_rotary_factor)
        self._width = width
        exponents = np.arange(0, self._rotated, 2, dtype=np.float32) / np.float32(self._rotated)
        # float32 steps as in the reference: the position multiplies a rounded frequency
        self._frequencies = np.float32(1) / np.power(np.float64(geometry.rope_theta), exponents).astype(np.float32)
        self._grow(_GROWTH)

    def _grow(self, num_positions: int) -> None:
        angles = np.arange(num_positions, dtype=np.float32)[:, None] * self._frequencies
        cos = np.ones((num_positions, 1, self._width), np.float32)
        sin = np.zeros_like(cos)
        half = self._rotated // 2
        cos[:, 0, :half] = cos[:, 0, half : 2 * half] = np.cos(angles.astype(np.float64))
        sin[:, 0, half : 2 * half] = np.sin(angles.astype(np.float64))
        sin[:, 0, :half] = -sin[:, 0, half : 2 * half]
        self._num_positions, self._cos, self._sin = num_positions, mx.array(cos), mx.array(sin)

    def __call__(self, x: mx.array, start: int, step: int = 1) -> mx.array:
        """Rotates `x [T, heads, width]`, whose rows are at positions `start, start + step, ...`."""
        stop = start + step * len(x)
        if stop > self._num_positions:
            self._grow(stop + stop // 2)
        half = self._rotated // 2
        swapped = mx.concatenate([x[..., half : 2 * half], x[..., :half], x[..., 2 * half :]], axis=-1)
        return x * self._cos[start:stop:step] + swapped * self._sin[start:stop:step]
