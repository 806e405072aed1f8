"""Everything a sequence carries from token to token, and transactions over all of it."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from workbench.geometry import Geometry
from workbench.model.ngram import NgramContext
from workbench.units import align_up

_GROWTH = 256


class QsaCache:
    """Keys, values and index keys of one QSA layer: append-only, so dropping rows is forgetting the length.

    Nothing outside may keep a view of a buffer past an evaluation: MLX writes in place only what has one owner.
    """

    def __init__(self, geometry: Geometry) -> None:
        self._ratio = geometry.indexer_compress_ratio
        self._num_kv_heads = geometry.num_key_value_heads
        self.length = 0
        """Tokens held; also the position of the next one."""
        self._kv = mx.zeros((2 * self._num_kv_heads, 0, geometry.head_dim))
        self._index = mx.zeros((0, geometry.indexer_head_dim))
        self._blocks = mx.zeros((0, geometry.indexer_head_dim))

    def append(self, keys: mx.array, values: mx.array, index_keys: mx.array) -> None:
        """Takes T tokens: keys and values `[T, kv heads, D]`, raw index keys `[T, index D]`."""
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

    def arrays(self) -> dict[str, mx.array]:
        """What of the buffers is part of the sequence."""
        keys, values = self.keys_values(self.length)
        return {"keys": keys, "values": values, "index_keys": self._index[: self.length]}


def _widened(buffer: mx.array, capacity: int, axis: int) -> mx.array:
    shape = list(buffer.shape)
    shape[axis] = capacity - shape[axis]
    return mx.concatenate([buffer, mx.zeros(shape)], axis=axis)


@dataclass(frozen=True, slots=True)
class _Saved:
    position: int
    context: NgramContext
    arrays: dict[str, mx.array]
    lengths: dict[int, int]


class SequenceState:
    """The whole state of one sequence. `begin`, then `commit` or `abort`: all of it moves, or nothing.

    `arrays` holds what is replaced as a whole each step (recurrent and convolution states, the last wide residual, the last
    logits); `caches` the QSA caches by layer, the MTP head's included.
    """

    def __init__(self, geometry: Geometry) -> None:
        self.position = 0
        self.context = NgramContext(geometry)
        self.arrays: dict[str, mx.array] = {}
        self.caches: dict[int, QsaCache] = {}
        self._saved: _Saved | None = None

    def advance(self, tokens: np.ndarray, wide: mx.array, logits: mx.array) -> None:
        """Ends a pass over `tokens [T]`: moves the position on and keeps the last token's wide residual and logits."""
        self.position += len(tokens)
        self.context = self.context.after(tokens)
        self.arrays["wide"] = wide[-1:]
        self.arrays["logits"] = logits[-1:]

    def begin(self) -> None:
        """Opens a transaction. Raises ValueError when one is open."""
        if self._saved is not None:
            raise ValueError("a transaction is already open")
        lengths = {layer: cache.length for layer, cache in self.caches.items()}
        self._saved = _Saved(self.position, self.context, dict(self.arrays), lengths)

    def commit(self) -> None:
        """Keeps everything since `begin`. Raises ValueError when no transaction is open."""
        self._close()

    def abort(self) -> None:
        """Restores everything as it was at `begin`. Raises ValueError when no transaction is open."""
        saved = self._close()
        self.position, self.context, self.arrays = saved.position, saved.context, saved.arrays
        for layer, length in saved.lengths.items():
            self.caches[layer].length = length

    def _close(self) -> _Saved:
        if self._saved is None:
            raise ValueError("no transaction is open")
        saved, self._saved = self._saved, None
        return saved

    def _canonical(self) -> Iterator[tuple[str, np.ndarray]]:
        yield "position", np.array(self.position, np.int64)
        yield "context", np.array(self.context.tokens, np.int64)
        for name in sorted(self.arrays):
            yield name, np.array(self.arrays[name])
        for layer in sorted(self.caches):
            for name, array in self.caches[layer].arrays().items():
                yield f"qsa.{layer}.{name}", np.array(array)

    def digest(self) -> str:
        """SHA-256 over names, shapes and little-endian bytes of everything above, in a fixed order."""
        sha = hashlib.sha256()
        for name, array in self._canonical():
            sha.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
            sha.update(np.ascontiguousarray(array).tobytes())
        return sha.hexdigest()
