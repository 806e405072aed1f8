"""The prefill pipeline: batches of a layer's records are demanded ahead, computed in order as reads complete, and released.

A prefill tile needs more records than memory holds, so a tile never waits for a whole layer: while one batch is computed, reads
of the next batches are in flight. A feed makes the batches: `union` and `chunk_buffer`.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx

from workbench.geometry import DOWN, GATE, UP
from workbench.loading.transfer import Transfer
from workbench.loading.wait import Loading
from workbench.model.experts import QuantizedMatrix, expert_forward
from workbench.runtime.evaluation import Evaluation
from workbench.runtime.routed_tokens import RoutedTokens
from workbench.scheduling.ticket import Demand, Scope

_PENDING = 2
"""Pipeline depth: batches dispatched to the device and not yet synchronised."""

Views = Mapping[str, QuantizedMatrix]
"""Gate, up and down of one record, as arrays on the memory of the record."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Records that are demanded, computed and released together."""

    demand: Demand
    keys: Sequence[int]
    """Records of the batch that the tile uses."""


class Feed(Protocol):
    """The batches of one layer, in the order in which they are read."""

    def fill(self) -> None:
        """Demands the next batches while there is room for them."""

    def next_batch(self) -> Loading[Batch | None]:
        """The next demanded batch; None after the last one, and while there is no room until a batch is released."""

    @property
    def is_done(self) -> bool:
        """Whether `next_batch` has returned all batches."""

    def views(self, batch: Batch) -> list[Views]:
        """Arrays of each record of a batch whose reads have completed."""

    def release(self, batch: Batch) -> None:
        """Releases a computed batch."""


class Work(Protocol):
    """Compute of one tile on records."""

    def begin(self, keys: Sequence[int], views: Sequence[Views]) -> Any:
        """Dispatches the experts `keys`; returns the argument of `finish`."""

    def finish(self, begun: Any) -> None:
        """Syncs a dispatched batch, so that its records can be released."""


class TileWork:
    """The experts of routed tokens, in MLX."""

    def __init__(self, block: RoutedTokens, evaluation: Evaluation, scope: Scope) -> None:
        self._block, self._evaluation, self._scope = block, evaluation, scope

    def begin(self, keys: Sequence[int], views: Sequence[Views]) -> list[mx.array]:
        """Dispatches the experts and adds their results to the routed tokens."""
        block, outputs = self._block, []
        for key, view in zip(keys, views, strict=True):
            outputs.append(expert_forward(block.rows(block.pairs([key])), view[GATE], view[UP], view[DOWN]))
        self._evaluation.send(*outputs)
        block.put(block.pairs(keys), outputs)
        return outputs

    def finish(self, begun: list[mx.array]) -> None:
        """Syncs the outputs of a batch."""
        self._evaluation.finish(self._scope, *begun)


class Flow:
    """Runs the batches of a feed: waits for their reads, dispatches their compute."""

    def __init__(self, transfer: Transfer) -> None:
        self._transfer = transfer
        self._pending: deque[tuple[Batch, Any]] = deque()
        self.waited_ns = 0
        """Exposed wait so far."""

    def run(self, feed: Feed, work: Work) -> Loading[None]:
        """Computes one layer; no batch of the feed is pinned afterwards."""
        feed.fill()
        while not feed.is_done:
            batch = yield from feed.next_batch()
            if batch is not None:
                # an exposed wait begins only when no dispatched batch is left
                self.waited_ns += yield from self._transfer.wait(batch.demand, lambda: self._finish_one(feed, work))
                self._pending.append((batch, work.begin(batch.keys, feed.views(batch))))
            if self._pending and (batch is None or len(self._pending) > _PENDING):
                self._finish(feed, work)
        while self._pending:
            self._finish(feed, work)

    def _finish_one(self, feed: Feed, work: Work) -> bool:
        if not self._pending:
            return False
        self._finish(feed, work)
        return True

    def _finish(self, feed: Feed, work: Work) -> None:
        batch, begun = self._pending.popleft()
        work.finish(begun)
        feed.release(batch)
        feed.fill()
