"""Indexed attention (QSA): a cheap indexer picks blocks of keys, attention reads the chosen blocks and the unfinished tail.

A block's index key is pooled over its `ratio` tokens first, then normed, then rotated at the block's first position. While
all complete blocks fit the budget the result equals dense attention.
Shapes: T tokens, R rows past the budget, B blocks, D head dimension, S keys that a row reads.
"""

import math
from functools import cached_property

import mlx.core as mx
import numpy as np

from workbench.geometry import Geometry
from workbench.model.cache import QsaCache
from workbench.model.norm import rms_norm
from workbench.model.rope import Rotary
from workbench.model.state import LONGEST_BLOCK, SequenceState
from workbench.model.weights import Weights, joined

_GATHER_BYTES = 8 * 1024**2
"""Most bytes of keys and values that are copied at once for rows past the budget."""


class IndexedAttention:
    """One QSA block."""

    def __init__(self, geometry: Geometry, weights: Weights, layer: int, rotary: Rotary, index_rotary: Rotary) -> None:
        self._geometry = geometry
        self._layer = layer
        self._heads, self._dim = geometry.num_attention_heads, geometry.head_dim
        self._index_heads, self._index_dim = geometry.indexer_n_heads, geometry.indexer_head_dim
        self._ratio = geometry.indexer_compress_ratio
        self._top_blocks = geometry.indexer_budget // self._ratio
        self._rotary, self._index_rotary = rotary, index_rotary
        self._load_projections(weights)
        self._load_norms(weights)

    def _load_projections(self, weights: Weights) -> None:
        kv_width = self._geometry.num_key_value_heads * self._dim
        # q_proj interleaves each head's query and gate
        query, gate = mx.split(weights.rows("q_proj").reshape(self._heads, 2, self._dim, -1), 2, axis=1)
        columns = [query.reshape(self._heads * self._dim, -1), weights.rows("k_proj"), weights.rows("v_proj")]
        columns += [gate.reshape(self._heads * self._dim, -1), weights.rows("indexer.index_qk_proj")]
        self._project = joined(*columns)
        widths = [(self._heads * self._dim) + kv_width, kv_width, self._heads * self._dim, self._index_heads * self._index_dim]
        self._columns = np.cumsum(widths).tolist()
        self._out = joined(weights.rows("o_proj"))

    def _load_norms(self, weights: Weights) -> None:
        eps, kv_heads = self._geometry.rms_norm_eps, self._geometry.num_key_value_heads
        query, key = 1 + weights.array("q_norm.weight"), 1 + weights.array("k_norm.weight")
        self._qk_norm = rms_norm(mx.stack([query] * self._heads + [key] * kv_heads), eps)
        self._key_norm = rms_norm(mx.stack([key] * kv_heads), eps)
        self._index_query_norm = rms_norm(1 + weights.array("indexer.q_layernorm.weight"), eps)
        self._index_key_norm = rms_norm(1 + weights.array("indexer.k_layernorm.weight"), eps)

    def init_state(self, state: SequenceState) -> None:
        """Puts this block's empty cache into `state`."""
        state.caches[self._layer] = QsaCache(self._geometry)

    def __call__(self, hidden: mx.array, state: SequenceState) -> mx.array:
        """`[T, H]` -> `[T, H]`; appends T tokens to the cache."""
        cache = state.caches[self._layer]
        start = cache.length
        qk, values, gate, index_queries, index_keys = mx.split(hidden @ self._project, self._columns, axis=1)
        qk = self._rotary(self._qk_norm(qk.reshape(len(hidden), -1, self._dim)), start)
        self._store(cache, qk[:, self._heads :], values, index_keys)
        index_queries = index_queries.reshape(len(hidden), self._index_heads, self._index_dim)
        output = self._attend(qk[:, : self._heads], index_queries, cache, start)
        return (output.reshape(len(hidden), -1) * mx.sigmoid(gate)) @ self._out

    def append(self, hidden: mx.array, state: SequenceState) -> None:
        """Appends T tokens `[T, H]` to the cache without attending."""
        cache = state.caches[self._layer]
        kv_width = self._geometry.num_key_value_heads * self._dim
        keys, values, index_keys = mx.split(hidden @ self._project_keys, [kv_width, 2 * kv_width], axis=1)
        keys = self._rotary(self._key_norm(keys.reshape(len(hidden), -1, self._dim)), cache.length)
        self._store(cache, keys, values, index_keys)

    @cached_property
    def _project_keys(self) -> mx.array:
        """The columns of `_project` for keys, values and index keys. On the CPU the narrower product has the same bits."""
        qk, values, _, _, index_keys = mx.split(self._project, self._columns, axis=1)
        return joined(qk[:, self._heads * self._dim :].T, values.T, index_keys.T)

    def _store(self, cache: QsaCache, keys: mx.array, values: mx.array, index_keys: mx.array) -> None:
        """Appends rotated keys `[T, kv heads, D]`, values `[T, kv heads * D]` and raw index keys; finishes index blocks."""
        start = cache.length
        cache.append(keys, values.reshape(keys.shape), index_keys)
        self._finish_blocks(cache, start)

    def _finish_blocks(self, cache: QsaCache, start: int) -> None:
        first, stop = start // self._ratio, cache.length // self._ratio
        if first == stop:
            return
        raw = cache.index_keys(first * self._ratio, stop * self._ratio)
        pooled = self._index_key_norm(mx.mean(raw.reshape(stop - first, self._ratio, -1), axis=1))
        cache.put_blocks(first, self._index_rotary(pooled[:, None], first * self._ratio, self._ratio)[:, 0])

    def _attend(self, queries: mx.array, index_queries: mx.array, cache: QsaCache, start: int) -> mx.array:
        """Queries `[T, heads, D]` from position `start` on -> `[T, heads, D]`."""
        first_sparse = (self._top_blocks + 1) * self._ratio - 1
        num_dense = min(max(first_sparse - start, 0), len(queries))
        outputs = self._dense(queries[:num_dense], cache, start) if num_dense else []
        for row in range(num_dense, len(queries), self._rows_at_once):
            rows = slice(row, min(row + self._rows_at_once, len(queries)))
            outputs.append(self._sparse(queries[rows], index_queries[rows], cache, start + row))
            if rows.stop < len(queries):
                # one graph of many chunks would hold all their keys at once
                mx.eval(outputs[-1])
        return mx.concatenate(outputs) if len(outputs) > 1 else outputs[0]

    @property
    def _rows_at_once(self) -> int:
        row_values = 2 * self._geometry.num_key_value_heads * self._dim * (self._geometry.indexer_budget + self._ratio - 1)
        return max(LONGEST_BLOCK, _GATHER_BYTES // (4 * row_values))

    def _dense(self, queries: mx.array, cache: QsaCache, start: int) -> list[mx.array]:
        """Attention of rows that see every earlier token; row by row where bits must not depend on the block."""
        if len(queries) > LONGEST_BLOCK:
            output = self._product(queries.swapaxes(0, 1)[None], cache.keys_values(start + len(queries)), "causal")
            return [output[0].swapaxes(0, 1)]
        return [
            self._product(queries[row, :, None][None], cache.keys_values(start + row + 1), None)[:, :, 0]
            for row in range(len(queries))
        ]

    def _product(self, queries: mx.array, keys_values: tuple[mx.array, mx.array], mask: mx.array | str | None) -> mx.array:
        keys, values = (array if array.ndim == 4 else array[None] for array in keys_values)
        return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=self._dim**-0.5, mask=mask)

    def _sparse(self, queries: mx.array, index_queries: mx.array, cache: QsaCache, start: int) -> mx.array:
        """Attention of rows past the budget: `[R, heads, D]` -> `[R, heads, D]`, each over the same number of keys."""
        positions = np.arange(start, start + len(queries))[:, None]
        complete = (positions + 1) // self._ratio
        scores = self.block_scores(index_queries, cache, start)
        chosen = mx.sort(self.choose_blocks(scores, complete), axis=-1)
        in_blocks = (chosen[:, :, None] * self._ratio + mx.arange(self._ratio)).reshape(len(queries), -1)
        tail = complete * self._ratio + np.arange(self._ratio - 1)
        selected = mx.concatenate([in_blocks.astype(mx.int32), mx.array(np.minimum(tail, positions).astype(np.int32))], axis=1)
        visible = np.concatenate([np.ones(in_blocks.shape, bool), tail <= positions], axis=1)
        return self._product(queries[:, :, None], cache.gathered(selected), mx.array(visible)[:, None, None])[:, :, 0]

    def block_scores(self, index_queries: mx.array, cache: QsaCache, start: int) -> mx.array:
        """Indexer scores `[R, B]` of the blocks complete at the last row, for index queries `[R, index heads, index D]`."""
        rotated = self._index_rotary(self._index_query_norm(index_queries), start)
        blocks = cache.blocks((start + len(index_queries)) // self._ratio)
        products = rotated.reshape(-1, self._index_dim) @ blocks.T
        scores = mx.sum(mx.maximum(products, _ZERO).reshape(len(index_queries), self._index_heads, -1), axis=1)
        return scores / math.sqrt(self._index_dim)

    def choose_blocks(self, scores: mx.array, complete: np.ndarray) -> mx.array:
        """Ids `[R, top blocks]` of the best-scored among each row's `complete [R, 1]` blocks; among equals the lower id."""
        if len(scores) > 1:
            scores = mx.where(mx.array(np.arange(scores.shape[1]) < complete), scores, -mx.inf)
        return mx.argsort(-scores, axis=-1)[:, : self._top_blocks]


_ZERO = mx.array(0.0)
