"""Computes routed experts on the rows of a block that chose them, gate and up, then down, from the records in a pool's slots.

Both implementations, one gather over the pool's stack and one product per slot, give the same bits (tests compare them).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import mlx.core as mx
import numpy as np

from workbench.geometry import COMPONENTS, DOWN, GATE, UP
from workbench.model.experts import QuantizedMatrix, expert_forward, stacked_expert_forward, swiglu
from workbench.runtime.memory import RecordMemory
from workbench.runtime.routed_tokens import RoutedTokens

Slots = Mapping[int, int]
"""Slot of each key."""


class ExpertMath(Protocol):
    """Computes experts of a slot pool on a block. `keys` name the experts; results are in the order of `block.pairs(keys)`."""

    def run(self, block: RoutedTokens, keys: Sequence[int], slots: Slots) -> None:
        """Computes whole experts and puts their results into the block."""

    def gate_up(self, block: RoutedTokens, keys: Sequence[int], slots: Slots) -> list[mx.array]:
        """`silu(gate) * up` of the experts `keys`."""

    def down(self, block: RoutedTokens, keys: Sequence[int], slots: Slots, inner: Sequence[mx.array]) -> None:
        """Computes the down products of a result of `gate_up` and puts them into the block."""


class StackedMath:
    """Small records: one gather over the pool for all pairs at once."""

    def __init__(self, memory: RecordMemory, lead_in: Callable[[int], int]) -> None:
        """`lead_in(key)`: bytes between the start of a record's window and the record."""
        self._memory, self._lead_in = memory, lead_in
        self._gate, self._up, self._down = (memory.stack[name] for name in COMPONENTS)

    def run(self, block: RoutedTokens, keys: Sequence[int], slots: Slots) -> None:
        """Computes whole experts and puts their results into the block."""
        if block.is_whole(keys):
            ids = self._ids(block.flat, slots, block.shape)
            block.put_whole(self.run_entries(block.hidden, ids))
        else:
            self.down(block, keys, slots, self.gate_up(block, keys, slots))

    def run_entries(self, hidden: mx.array, entries: mx.array) -> mx.array:
        """The stack's `entries [T, k]` on `hidden [T, H]`: `[T * k, H]`."""
        outputs = stacked_expert_forward(hidden, entries, self._gate, self._up, self._down)
        return outputs.reshape(-1, outputs.shape[-1])

    def entries(self, keys: Sequence[int], slots: Slots) -> np.ndarray:
        """Entries of the stack at which the records of `keys` start."""
        return np.array([self._memory.entry(slots[key], self._lead_in(key)) for key in keys], dtype=np.uint32)

    def gate_up(self, block: RoutedTokens, keys: Sequence[int], slots: Slots) -> list[mx.array]:
        """`silu(gate) * up` of the experts `keys`, in one array."""
        pairs = block.pairs(keys)
        ids, x = self._pair_ids(block, pairs, slots), block.rows(pairs)[:, None, None, :]
        return [swiglu(self._gate.apply_gathered(x, ids), self._up.apply_gathered(x, ids))]

    def down(self, block: RoutedTokens, keys: Sequence[int], slots: Slots, inner: Sequence[mx.array]) -> None:
        """Computes the down products of a result of `gate_up` and puts them into the block."""
        pairs = block.pairs(keys)
        outputs = self._down.apply_gathered(inner[0], self._pair_ids(block, pairs, slots))
        block.put(pairs, [outputs.reshape(len(pairs), -1)])

    def _pair_ids(self, block: RoutedTokens, pairs: Sequence[int], slots: Slots) -> mx.array:
        # a single token's row is shared by all pairs, else each pair has its own
        return self._ids([block.flat[pair] for pair in pairs], slots, (1, -1) if block.shape[0] == 1 else (-1, 1))

    def _ids(self, keys: Sequence[int], slots: Slots, shape: tuple[int, int]) -> mx.array:
        return mx.array(self.entries(keys, slots).reshape(shape))


class SlotMath:
    """Large records: products on each slot's own arrays."""

    def __init__(self, memory: RecordMemory, lead_in: Callable[[int], int]) -> None:
        """`lead_in(key)`: bytes between the start of a record's window and the record."""
        self._memory, self._lead_in = memory, lead_in

    def run(self, block: RoutedTokens, keys: Sequence[int], slots: Slots) -> None:
        """Computes whole experts and puts their results into the block."""
        parts = ((x, view[GATE], view[UP], view[DOWN]) for x, view in self._parts(block, keys, slots))
        block.put(block.pairs(keys), [expert_forward(*part) for part in parts])

    def gate_up(self, block: RoutedTokens, keys: Sequence[int], slots: Slots) -> list[mx.array]:
        """`silu(gate) * up` of each expert of `keys`."""
        return [swiglu(view[GATE].apply(x), view[UP].apply(x)) for x, view in self._parts(block, keys, slots)]

    def down(self, block: RoutedTokens, keys: Sequence[int], slots: Slots, inner: Sequence[mx.array]) -> None:
        """Computes the down products of a result of `gate_up` and puts them into the block."""
        views = (self._view(key, slots) for key in keys)
        block.put(block.pairs(keys), [view[DOWN].apply(x) for x, view in zip(inner, views, strict=True)])

    def _parts(
        self, block: RoutedTokens, keys: Sequence[int], slots: Slots
    ) -> Iterator[tuple[mx.array, Mapping[str, QuantizedMatrix]]]:
        return ((block.rows(block.pairs([key])), self._view(key, slots)) for key in keys)

    def _view(self, key: int, slots: Slots) -> Mapping[str, QuantizedMatrix]:
        return self._memory.components(slots[key], self._lead_in(key))


def expert_math(memory: RecordMemory, lead_in: Callable[[int], int]) -> StackedMath | SlotMath:
    """The implementation that suits the size of a pool's records."""
    return StackedMath(memory, lead_in) if memory.small else SlotMath(memory, lead_in)
