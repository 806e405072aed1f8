"""Bootstrap intervals by request: whole requests are drawn with replacement, so tokens of one request stay together."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from workbench.analysis.routes import Array
from workbench.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A value with the ends of its interval; arrays of one shape, or floats."""

    value: Array
    low: Array
    high: Array


@dataclass(frozen=True)
class Resampler:
    """How often each of `num_requests` requests is drawn in each of `num_resamples` resamples.

    One resampler serves all measures of a trace, so every measure sees the same resamples.
    """

    num_requests: int
    num_resamples: int = 2000
    seed: int = 0
    confidence: float = 0.95

    @cached_property
    def weights(self) -> Array:
        """`[resamples, requests]` counts; each row sums to `num_requests`."""
        share = np.full(self.num_requests, 1 / self.num_requests)
        return np.random.default_rng(self.seed).multinomial(self.num_requests, share, size=self.num_resamples).astype(np.float64)

    def estimate(self, statistic: Callable[..., Array], *sums: Array) -> Interval:
        """Percentile interval of `statistic` applied to sums over requests.

        Each of `sums` is `[R, ...]`; `statistic` gets each summed over its requests with a leading axis of resamples.
        """
        drawn = statistic(*(np.tensordot(self.weights, part, axes=1) for part in sums))
        once = np.ones((1, self.num_requests))
        value = statistic(*(np.tensordot(once, part, axes=1) for part in sums))[0]
        tail = 50 * (1 - self.confidence)
        low, high = np.nanpercentile(drawn, [tail, 100 - tail], axis=0)
        return Interval(value=value, low=low, high=high)

    def ratio(self, numerator: Array, denominator: Array) -> Interval:
        """Interval of `sum(numerator) / sum(denominator)`; `numerator` is `[R, ...]`, `denominator` `[R]`.

        Raises BadInput when the denominator is 0 for every request.
        """
        if not denominator.any():
            raise BadInput("no request of the trace is long enough for this measure")
        return self.estimate(ratio_of, numerator, denominator)


def ratio_of(numerator: Array, denominator: Array) -> Array:
    """`numerator / denominator` along their shared leading axes; NaN where the denominator is 0."""
    wide = denominator.reshape(denominator.shape + (1,) * (numerator.ndim - denominator.ndim))
    empty = np.full(np.broadcast_shapes(numerator.shape, wide.shape), np.nan)
    return np.divide(numerator, wide, out=empty, where=wide > 0)
