"""The cache of one QSA layer."""

import mlx.core as mx

from workbench.geometry import Geometry
from workbench.units import align_up

_GROWTH = 256


class QsaCache:
    """Keys, values and index keys of one QSA layer: append-only, so rows are dropped by shortening `length`.

    No other object may keep a view of a buffer past an evaluation: MLX writes in place only into arrays with one owner.
    """

    def __init__(self, geometry: Geometry) -> None:
        self._ratio = geometry.indexer_compress_ratio
        self._num_kv_heads = geometry.num_key_value_heads
        self.length = 0
        """Number of cached tokens, which is the position of the next token."""
        self._kv = mx.zeros((2 * self._num_kv_heads, 0, geometry.head_dim))
        self._index = mx.zeros((0, geometry.indexer_head_dim))
        self._blocks = mx.zeros((0, geometry.indexer_head_dim))

    def append(self, keys: mx.array, values: mx.array, index_keys: mx.array) -> None:
        """Appends T tokens: keys and values `[T, kv heads, D]`, raw index keys `[T, index D]`."""
        start, self.length = self.length, self.length + len(keys)
        self._reserve()
        self._kv[:, start : self.length] = mx.concatenate([keys, values], axis=1).swapaxes(0, 1)
        self._index[start : self.length] = index_keys

    def _reserve(self) -> None:
        if self.length <= self._kv.shape[1]:
            return
        # a multiple of the growth in blocks, so that every buffer ends on a whole block
        capacity = align_up(self.length + self.length // 2, _GROWTH * self._ratio)
        self._kv = _widened(self._kv, capacity, axis=1)
        self._index = _widened(self._index, capacity, axis=0)
        self._blocks = _widened(self._blocks, capacity // self._ratio, axis=0)

    def keys_values(self, stop: int) -> tuple[mx.array, mx.array]:
        """Keys and values of the first `stop` tokens, each `[kv heads, stop, D]`."""
        return self._kv[: self._num_kv_heads, :stop], self._kv[self._num_kv_heads :, :stop]

    def gathered(self, positions: mx.array) -> tuple[mx.array, mx.array]:
        """Keys and values at `positions [R, S]`, each `[R, kv heads, S, D]`."""
        rows = mx.take(self._kv, positions, axis=1).swapaxes(0, 1)
        return rows[:, : self._num_kv_heads], rows[:, self._num_kv_heads :]

    def index_keys(self, start: int, stop: int) -> mx.array:
        """Raw index keys of tokens `start..stop`, `[stop - start, index D]`."""
        return self._index[start:stop]

    def put_blocks(self, first: int, keys: mx.array) -> None:
        """Stores the finished index keys `[B, index D]` of the blocks from `first` on."""
        self._blocks[first : first + len(keys)] = keys

    def blocks(self, count: int) -> mx.array:
        """Index keys of the first `count` blocks, `[count, index D]`."""
        return self._blocks[:count]

    def buffers(self) -> tuple[mx.array, ...]:
        """The whole buffers, only to dispatch their computation."""
        return self._kv, self._index, self._blocks

    def arrays(self, num_tokens: int) -> dict[str, mx.array]:
        """Keys, values and raw index keys of the first `num_tokens` tokens, by name."""
        keys, values = self.keys_values(num_tokens)
        return {"keys": keys, "values": values, "index_keys": self._index[:num_tokens]}


def _widened(buffer: mx.array, capacity: int, axis: int) -> mx.array:
    shape = list(buffer.shape)
    shape[axis] = capacity - shape[axis]
    return mx.concatenate([buffer, mx.zeros(shape)], axis=axis)
