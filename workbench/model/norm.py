"""Norms over the last axis."""

import math

import mlx.core as mx


class Norm:
    """`x / sqrt(sum(x^2) + eps) * weight` over the last axis."""

    def __init__(self, weight: mx.array, eps: float) -> None:
        self._weight = weight
        self._eps = mx.array(eps, mx.float32)

    def __call__(self, x: mx.array) -> mx.array:
        """`x` normalised; same shape."""
        return x * mx.rsqrt(mx.sum(x * x, axis=-1, keepdims=True) + self._eps) * self._weight


def rms_norm(weight: mx.array, eps: float) -> Norm:
    """RMS norm: the mean's `1 / D` is moved into weight and eps, which saves one operation per call."""
    width = weight.shape[-1]
    return Norm(weight * math.sqrt(width), eps * width)
