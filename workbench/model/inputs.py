"""Inputs of a block's recurrences, from which the state after any prefix is computed: no copy of the state is needed.

Shapes: T tokens of the block, n tokens of a prefix of it.
"""

from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx


class BlockInputs(Protocol):
    """Inputs that a block gave to one array of the state."""

    def state_after(self, num_tokens: int) -> mx.array:
        """The array after the first `num_tokens` tokens of the block (1 to T)."""


@dataclass(frozen=True, slots=True)
class ConvolutionInputs:
    """Inputs of a causal convolution."""

    history: mx.array
    """`[rows + T, channels]`: the state before the block, then the inputs of the block."""
    num_rows: int
    """Rows of the state."""

    def state_after(self, num_tokens: int) -> mx.array:
        """The last rows of the history up to the prefix's end: `[rows, channels]`."""
        return mx.contiguous(self.history[num_tokens : num_tokens + self.num_rows])


@dataclass(frozen=True, slots=True)
class DeltaInputs:
    """Inputs of the gated delta rule. K key heads, V value heads, D dimensions of a head."""

    before: mx.array
    """`[1, V, value D, key D]`: the recurrent state before the block, by reference."""
    keys: mx.array
    """`[1, T, K, key D]`."""
    values: mx.array
    """`[1, T, V, value D]`."""
    decay: mx.array
    """`[1, T, V]`."""
    beta: mx.array
    """`[1, T, V]`: share of each value that is written."""

    def state_after(self, num_tokens: int) -> mx.array:
        """The recurrent state updated with the first inputs: `[1, V, value D, key D]`."""
        first = slice(num_tokens)
        keys = self.keys[:, first]
        # queries change outputs only, and the outputs are dropped: the keys have the shape that queries need
        _, state = mx.fast.gated_delta_update(
            keys, keys, self.values[:, first], self.decay[:, first], self.beta[:, first], self.before
        )
        return state


@dataclass(frozen=True, slots=True)
class RowInputs:
    """Rows of an array whose last row is the state: the wide residual, the logits."""

    rows: mx.array
    """`[T, width]`."""

    def state_after(self, num_tokens: int) -> mx.array:
        """The row of the prefix's last token: `[1, width]`."""
        # contiguous: a mere view would keep all rows
        return mx.contiguous(self.rows[num_tokens - 1 : num_tokens])
