"""Waves: the experts of a demand on a block, resident ones at once, the others as their bytes arrive (AFN-019, H4).

Which experts run together follows the disk; where their results go does not, so every order gives the same bits.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx

from workbench.runtime.block import Block
from workbench.runtime.evaluation import Evaluation
from workbench.runtime.expert_math import ExpertMath
from workbench.runtime.step import Step
from workbench.runtime.transfer import Transfer
from workbench.scheduling.demand import Demand, WaveSize
from workbench.scheduling.pool import DOWN_BIT, GATE_UP_BITS, RECORD_BITS

Timed = Callable[[str, Callable[[], list[mx.array]]], list[mx.array]]


class Waves:
    """Runs the experts of demands, one demand at a time."""

    def __init__(self, math: ExpertMath, transfer: Transfer, evaluation: Evaluation, step: Step, size: WaveSize) -> None:
        """`size`: the fewest missing experts that run together; all that have arrived by then run with them."""
        self._math, self._transfer, self._evaluation, self._step, self._size = math, transfer, evaluation, step, size
        self.timed: Timed | None = None
        """Set by an attribution run: runs a named part, evaluates it and notes its time."""

    def run(self, block: Block, demand: Demand, keys: Sequence[int]) -> None:
        """Puts the results of `keys`, some or all of those demanded, into the block. Raises RequestFailed."""
        if self.timed is not None:
            self._run_timed(block, demand, keys, self.timed)
        elif not demand.tickets:
            self._math.run(block, keys, demand.slots)
        else:
            self._fly(block, demand, keys)

    def _run_timed(self, block: Block, demand: Demand, keys: Sequence[int], timed: Timed) -> None:
        self._transfer.wait(demand, position=self._step.position)
        inner = timed("gate_up", lambda: self._math.gate_up(block, keys, demand.slots))
        timed("down", lambda: self._down(block, demand, keys, inner))

    def _down(self, block: Block, demand: Demand, keys: Sequence[int], inner: Sequence[mx.array]) -> list[mx.array]:
        before = len(block.pieces)
        self._math.down(block, keys, demand.slots, inner)
        return block.pieces[before:]

    def _fly(self, block: Block, demand: Demand, keys: Sequence[int]) -> None:
        flight = _Flight(self._math, self._transfer, self._evaluation, block, demand, self._step.position)
        if self._size == "barrier":
            self._transfer.wait(demand, position=self._step.position)
            flight.start(keys)
            return
        wanted = set(keys)
        if hits := [key for key in demand.hits if key in wanted]:
            flight.start(hits)
        missing = [*demand.joined, *demand.misses]
        flight.land(missing, len(missing) if self._size == "all" else self._size)


@dataclass(slots=True, eq=False)
class _Wave:
    """Experts that run together."""

    keys: list[int]
    inner: list[mx.array] | None = None
    """What gate and up gave, where down was still on its way then."""

    def __len__(self) -> int:
        return len(self.keys)


class _Flight:
    """One demand on one block, from its hits to its last wave."""

    def __init__(
        self, math: ExpertMath, transfer: Transfer, evaluation: Evaluation, block: Block, demand: Demand, position: int
    ) -> None:
        self._math, self._transfer, self._evaluation, self._block, self._demand = math, transfer, evaluation, block, demand
        self._position = position
        self._asked_ns = transfer.clock.now_ns()
        self._arriving: list[int] = []
        self._open: list[_Wave] = []
        self._running: deque[mx.array] = deque()

    def start(self, keys: Sequence[int]) -> None:
        """Runs experts whose bytes are all there."""
        self._run(_Wave(list(keys)))

    def land(self, keys: Sequence[int], size: int) -> None:
        """Runs experts as they arrive, `size` or more together, and those that remain."""
        self._arriving = list(keys)
        while self._arriving or self._open:
            self._transfer.collect()
            wave = self._next(size) or self._await_next(size)
            if wave.keys[0] in self._arriving:
                self._arriving = [key for key in self._arriving if key not in wave.keys]
            self._run(wave)

    def _next(self, size: int) -> _Wave | None:
        """What can run now: down of an open wave, else a new wave; None while the bytes of neither are there."""
        for wave in self._open:
            if self._demand.have(wave.keys, DOWN_BIT):
                return wave
        ready = [key for key in self._arriving if self._demand.have([key], GATE_UP_BITS)]
        return _Wave(ready) if ready and len(ready) >= min(size, len(self._arriving)) else None

    def _await_next(self, size: int) -> _Wave:
        """Lets compute finish piece by piece, looking for bytes after each one; stands still when there is nothing left."""
        while self._running:
            self._evaluation.finish(self._running.popleft())
            self._transfer.collect()
            if (wave := self._next(size)) is not None:
                return wave
        keys = [*self._arriving, *(key for wave in self._open for key in wave.keys)]
        return self._transfer.stand_still(self._demand, lambda: self._next(size), keys, position=self._position)

    def _run(self, wave: _Wave) -> None:
        """Sends off gate and up of a wave, its down, or both: whatever has its bytes and was not sent yet."""
        block, keys, slots, before = self._block, wave.keys, self._demand.slots, len(self._block.pieces)
        if wave.inner is not None:
            self._open.remove(wave)
            self._note(keys, "down", DOWN_BIT)
            self._math.down(block, keys, slots, wave.inner)
        elif self._demand.have(keys, RECORD_BITS):
            self._note(keys, "gate_up", GATE_UP_BITS)
            self._note(keys, "down", DOWN_BIT)
            self._math.run(block, keys, slots)
        else:
            self._note(keys, "gate_up", GATE_UP_BITS)
            wave.inner = self._math.gate_up(block, keys, slots)
            self._open.append(wave)
        outputs = block.pieces[before:] or wave.inner or []
        self._evaluation.send(*outputs)
        self._running.extend(outputs)

    def _note(self, keys: Sequence[int], name: str, components: int) -> None:
        """Compute takes these components: fixes whether they were on time."""
        self._transfer.take(self._demand, keys, name, components, self._asked_ns, position=self._position)
