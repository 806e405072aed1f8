"""Hits without the host: a table in memory that the device reads says where in the pool's stack each resident record lies."""

from collections.abc import Iterable, Sequence

import mlx.core as mx
import numpy as np

from workbench.runtime.evaluation import Evaluation
from workbench.runtime.expert_math import Slots, StackedMath

_ABSENT = -1


class HitTable:
    """Stack entry of each resident record key, on the device. The host writes it; only misses are read back."""

    def __init__(self, num_keys: int, math: StackedMath, evaluation: Evaluation) -> None:
        self._math, self._evaluation = math, evaluation
        self._table = mx.full((num_keys,), _ABSENT, dtype=mx.int32)
        mx.eval(self._table)
        # shares the array's memory: what the host writes is what the device reads next
        self._entries = np.array(self._table, copy=False)

    def dispatch(self, hidden: mx.array, keys: mx.array) -> tuple[mx.array, mx.array]:
        """Dispatches experts `keys [T, k]` on `hidden [T, H]`: the keys that the table lacks (else -1), and results `[T * k, H]`.

        The result of a missing record is that of another record: the caller must replace it.
        """
        entries = self._table[keys]
        missing = mx.where(entries < 0, keys, _ABSENT)
        self._evaluation.send(missing)
        results = self._math.run_entries(hidden, mx.maximum(entries, 0).astype(mx.uint32))
        self._evaluation.send(results)
        return missing, results

    def hold(self, keys: Sequence[int], slots: Slots) -> None:
        """Enters resident records, which keep their slots until `drop`."""
        self._entries[keys] = self._math.entries(keys, slots)

    def drop(self, keys: Iterable[int]) -> None:
        """Removes records that left their slots."""
        self._entries[list(keys)] = _ABSENT
