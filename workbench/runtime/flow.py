"""Records flow past compute: parts of a layer are asked for ahead, computed in order as their bytes come, and let go.

What a prefill tile needs is more than memory holds, so it never waits for a whole layer: while one part is computed, the
reads of the next ones are in flight. How parts are made is the feed's business: `union` and `ring`.
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
from workbench.runtime.block import Block
from workbench.runtime.evaluation import Evaluation
from workbench.scheduling.ticket import Demand, Scope

_PENDING = 2
"""Parts that compute has been given and whose end nobody has waited for: the next one is dispatched behind them."""

Views = Mapping[str, QuantizedMatrix]
"""Gate, up and down of one record, where they lie."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Records that come, are computed and go together."""

    demand: Demand
    keys: Sequence[int]
    """Those that the tile uses."""


class Feed(Protocol):
    """The parts of one layer, in the order in which they are read."""

    def fill(self) -> None:
        """Asks for as many of the next parts as there is room for."""

    def take(self) -> Loading[Part | None]:
        """The next part, asked for; None when there is none, or no room for it until a part is released."""

    @property
    def is_done(self) -> bool:
        """Whether all parts were taken."""

    def views(self, part: Part) -> list[Views]:
        """Where the records of a part lie, once they are there."""

    def release(self, part: Part) -> None:
        """A part has been computed: its memory may go."""


class Work(Protocol):
    """What is to be computed on records."""

    def begin(self, keys: Sequence[int], views: Sequence[Views]) -> Any:
        """Dispatches the experts `keys`; what `finish` needs."""

    def finish(self, begun: Any) -> None:
        """Returns when what was begun has been computed, so that its records may go."""


class BlockWork:
    """The experts of a block of tokens, in MLX."""

    def __init__(self, block: Block, evaluation: Evaluation, scope: Scope) -> None:
        self._block, self._evaluation, self._scope = block, evaluation, scope

    def begin(self, keys: Sequence[int], views: Sequence[Views]) -> list[mx.array]:
        """Dispatches the experts and puts their results into the block."""
        block, outputs = self._block, []
        for key, view in zip(keys, views, strict=True):
            outputs.append(expert_forward(block.rows(block.pairs([key])), view[GATE], view[UP], view[DOWN]))
        self._evaluation.send(*outputs)
        block.put(block.pairs(keys), outputs)
        return outputs

    def finish(self, begun: list[mx.array]) -> None:
        """Evaluates them."""
        self._evaluation.finish(self._scope, *begun)


class Flow:
    """Takes the parts of a feed, waits for their bytes, and has them computed."""

    def __init__(self, transfer: Transfer) -> None:
        self._transfer = transfer
        self._pending: deque[tuple[Part, Any]] = deque()
        self.waited_ns = 0
        """Time that compute has stood still for bytes."""

    def run(self, feed: Feed, work: Work) -> Loading[None]:
        """Computes one layer; nothing of it is held afterwards."""
        feed.fill()
        while not feed.is_done:
            part = yield from feed.take()
            if part is not None:
                # compute stands still only when it has nothing left to do
                self.waited_ns += yield from self._transfer.wait(part.demand, lambda: self._finish_one(feed, work))
                self._pending.append((part, work.begin(part.keys, feed.views(part))))
            if self._pending and (part is None or len(self._pending) > _PENDING):
                self._finish(feed, work)
        while self._pending:
            self._finish(feed, work)

    def _finish_one(self, feed: Feed, work: Work) -> bool:
        if not self._pending:
            return False
        self._finish(feed, work)
        return True

    def _finish(self, feed: Feed, work: Work) -> None:
        part, begun = self._pending.popleft()
        work.finish(begun)
        feed.release(part)
        feed.fill()
