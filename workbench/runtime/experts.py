"""Routed experts from disk: what `forward` computes on, read when the native router says so."""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from workbench.geometry import Geometry
from workbench.runtime.block import Block
from workbench.runtime.evaluation import Evaluation
from workbench.runtime.flow import BlockWork
from workbench.runtime.hit_table import HitTable
from workbench.runtime.prefetch import NextLayer
from workbench.runtime.prefill import Prefill
from workbench.runtime.step import Step
from workbench.runtime.transfer import Transfer
from workbench.runtime.waves import Waves
from workbench.scheduling.demand import Demand

LONGEST_BLOCK = 8
"""Tokens of a decode step or of a block that is verified; what is longer is a tile of a prompt."""


class StreamedExperts:
    """Experts of a slot pool that is filled from an ExpertMajor store."""

    def __init__(
        self,
        geometry: Geometry,
        transfer: Transfer,
        waves: Waves,
        evaluation: Evaluation,
        step: Step,
        *,
        prefill: Prefill,
        hit_table: HitTable | None = None,
        next_layer: NextLayer | None = None,
    ) -> None:
        """`prefill`: runs tiles of a prompt. `hit_table`: resolve hits on the device, before the host has seen the route.
        `next_layer`: predict all of it.
        """
        self._geometry, self._transfer, self._evaluation, self._step = geometry, transfer, evaluation, step
        self.waves = waves
        self._prefill, self._hit_table, self._next_layer = prefill, hit_table, next_layer
        self._is_tile = False
        self._slots = transfer.scheduler.pools["expert"].slots
        self._held: Demand | None = None

    def start(self, num_tokens: int) -> None:
        """A pass over `num_tokens` begins."""
        self._is_tile = self._step.phase == "prefill" and num_tokens > LONGEST_BLOCK
        if self._is_tile:
            self._prefill.start(num_tokens)
        else:
            self._prefill.end()

    def run(self, layer: int, hidden: mx.array, ids: mx.array) -> mx.array:
        """The experts `ids [T, k]` of `layer` on `hidden [T, H]`: `[T, k, H]`."""
        first_key = layer * self._geometry.num_experts
        if self._hit_table is not None and len(hidden) <= LONGEST_BLOCK and self.waves.timed is None:
            return self._run_ahead(self._hit_table, layer, hidden, ids.astype(mx.int32) + first_key)
        chosen = self._evaluation.read_back(layer, ids)
        # reading the ids back has evaluated everything before, so the slots of the layer before are free to go
        self.settle()
        block = Block(hidden, chosen.astype(np.int64) + first_key)
        if self._is_tile and len(hidden) > LONGEST_BLOCK:
            self._prefill.run(layer, BlockWork(block, self._evaluation), block.heat, len(hidden))
            return block.result()
        most = self._slots.capacity
        for start in range(0, len(block.keys), most):
            if start:
                self._evaluation.finish(*block.pieces)
                self.settle()
            keys = block.keys[start : start + most]
            self.waves.run(block, self._demand(layer, keys), keys)
        return block.result()

    def _run_ahead(self, table: HitTable, layer: int, hidden: mx.array, keys: mx.array) -> mx.array:
        """Hits are sent off before the host has seen which they are; it waits for the list of misses only."""
        missing, hits = table.dispatch(hidden, keys)
        lacking = self._evaluation.read_back(layer, missing)
        self.settle()
        block = Block(hidden, np.array(keys))
        demand = self._demand(layer, block.keys)
        block.put_whole(hits)
        late = [key for key in dict.fromkeys(lacking.ravel().tolist()) if key >= 0]
        if late:
            self.waves.run(block, demand, late)
            table.hold(late, demand.slots)
        return block.result()

    def _demand(self, layer: int, keys: Sequence[int]) -> Demand:
        """Demands records and holds them until `settle`."""
        self._held = self._transfer.demand(
            "expert",
            keys,
            self._step.event(layer),
            position=self._step.position,
            logical_bytes=len(keys) * self._geometry.record_bytes,
        )
        if self._next_layer is not None:
            self._next_layer.follow(layer)
        return self._held

    def settle(self) -> None:
        """Ends the leases of the layer that ran last; its results must have been evaluated."""
        if self._held is not None:
            self._transfer.scheduler.release(self._held)
            self._held = None

    def forget(self) -> None:
        """Drops what a failed pass holds; the scheduler ends its leases."""
        self._held = None
        self._prefill.forget()
