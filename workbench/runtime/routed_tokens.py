"""One layer's block of tokens: the (token, rank) pairs that each record serves, and the results of all pairs."""

from collections.abc import Sequence
from functools import cached_property

import mlx.core as mx
import numpy as np


class RoutedTokens:
    """`T` tokens that chose `k` records each. The number of a pair is `token * k + rank`.

    Results may be put in any order and in any number of pieces; `result` has them in rank order.
    """

    def __init__(self, hidden: mx.array, keys: np.ndarray) -> None:
        """`hidden [T, H]`, and record keys `[T, k]` in rank order."""
        self.hidden = hidden
        self.shape: tuple[int, int] = keys.shape
        self.flat: list[int] = keys.ravel().tolist()
        """Record key of each pair."""
        self.keys: list[int] = list(dict.fromkeys(self.flat))
        """Each key once, in the order of its first use."""
        self.pieces: list[mx.array] = []
        """Results so far, in the order of `put`."""
        self._sources: list[Sequence[int]] = []

    @cached_property
    def _served(self) -> dict[int, list[int]]:
        served: dict[int, list[int]] = {}
        for number, key in enumerate(self.flat):
            served.setdefault(key, []).append(number)
        return served

    @property
    def heat(self) -> dict[int, int]:
        """How many pairs each key serves."""
        return {key: len(pairs) for key, pairs in self._served.items()}

    def is_whole(self, keys: Sequence[int]) -> bool:
        """Whether `keys`, each named once, are all keys of the block."""
        return len(keys) == len(self.keys)

    def pairs(self, keys: Sequence[int]) -> list[int]:
        """Numbers of the pairs that `keys` serve, key by key."""
        return [number for key in keys for number in self._served[key]]

    def rows(self, pairs: Sequence[int]) -> mx.array:
        """Hidden rows `[n, H]` of pairs; a single token's row stands for all of them."""
        if self.shape[0] == 1:
            return self.hidden
        return self.hidden[mx.array(np.array(pairs) // self.shape[1])]

    def put(self, pairs: Sequence[int], outputs: Sequence[mx.array]) -> None:
        """Stores results `[n, H]` of pairs, in one or more arrays; they replace earlier results of these pairs."""
        self._sources.append(pairs)
        self.pieces += outputs

    def put_whole(self, outputs: mx.array) -> None:
        """Stores results `[T * k, H]` of all pairs, in the order of their numbers."""
        self.put(range(len(self.flat)), [outputs])

    def result(self) -> mx.array:
        """All results, `[T, k, H]`."""
        made = self.pieces[0] if len(self.pieces) == 1 else mx.concatenate(self.pieces)
        if len(self._sources) > 1 or not isinstance(self._sources[0], range):
            order = np.concatenate(self._sources)
            source = np.empty(len(self.flat), dtype=np.int64)
            source[order] = np.arange(len(order))
            made = made[mx.array(source)]
        return made.reshape(*self.shape, -1)
