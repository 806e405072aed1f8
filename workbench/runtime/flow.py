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
from workbench.model.experts import QuantizedMatrix, expert_forward
from workbench.runtime.block import Block
from workbench.runtime.evaluation import Evaluation
from workbench.runtime.transfer import Transfer
from workbench.scheduling.demand import Demand

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

    def take(self) -> Part | None:
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

    def __init__(self, block: Block, evaluation: Evaluation) -> None:
        self._block, self._evaluation = block, evaluation

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
        self._evaluation.finish(*begun)


class Flow:
    """Takes the parts of a feed, waits for their bytes, and has them computed."""

    def __init__(self, transfer: Transfer) -> None:
        self._transfer = transfer
        self._pending: deque[tuple[Part, Any]] = deque()
        self.waited_ns = 0
        """Time that compute has stood still for bytes."""

    def run(self, feed: Feed, work: Work, *, position: int) -> None:
        """Computes one layer; nothing of it is held afterwards."""
        feed.fill()
        while not feed.is_done:
            part = feed.take()
            if part is not None:
                self._wait(part, feed, work, position)
                self._pending.append((part, work.begin(part.keys, feed.views(part))))
            if self._pending and (part is None or len(self._pending) > _PENDING):
                self._finish(feed, work)
        while self._pending:
            self._finish(feed, work)

    def forget(self) -> None:
        """Drops what a failed pass was about; the scheduler ends its leases."""
        self._pending.clear()

    def _wait(self, part: Part, feed: Feed, work: Work, position: int) -> None:
        """Until the bytes of a part are there; compute stands still only when it has nothing left to do."""
        while self._pending and not self._transfer.is_there(part.demand):
            self._finish(feed, work)
        clock = self._transfer.clock
        start_ns = clock.now_ns()
        self._transfer.wait(part.demand, position=position)
        self.waited_ns += clock.now_ns() - start_ns

    def _finish(self, feed: Feed, work: Work) -> None:
        part, begun = self._pending.popleft()
        work.finish(begun)
        feed.release(part)
        feed.fill()
