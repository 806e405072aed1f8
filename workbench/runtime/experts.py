"""Routed experts from disk: what `forward` computes on, read when the native router says so."""

from collections.abc import Callable, Mapping, Sequence

import mlx.core as mx
import numpy as np

from workbench.geometry import COMPONENTS, DOWN, GATE, UP, Geometry
from workbench.model.experts import QuantizedMatrix, expert_forward, stacked_expert_forward, swiglu
from workbench.runtime.pool import RecordPool
from workbench.runtime.records import RecordSource
from workbench.runtime.step import Step
from workbench.runtime.transfer import Transfer
from workbench.scheduling.demand import Demand

Timed = Callable[[str, Callable[[], list[mx.array]]], list[mx.array]]


class StreamedExperts:
    """Experts of a slot pool that is filled from an ExpertMajor store. Each expert runs on its own slot's arrays."""

    def __init__(self, geometry: Geometry, transfer: Transfer, source: RecordSource, pool: RecordPool, step: Step) -> None:
        self._geometry, self._transfer, self._source, self._pool, self._step = geometry, transfer, source, pool, step
        self._held: Demand | None = None
        self.timed: Timed | None = None
        """Set by an attribution run: runs a named part, evaluates it and notes its time."""

    def run(self, layer: int, hidden: mx.array, ids: mx.array) -> mx.array:
        """The experts `ids [T, k]` of `layer` on `hidden [T, H]`: `[T, k, H]`."""
        chosen = np.array(ids)
        # reading the ids back has evaluated everything before, so the slots of the layer before are free to go
        self.settle()
        experts = list(dict.fromkeys(chosen.ravel().tolist()))
        passes = [experts[i : i + self._pool.num_slots] for i in range(0, len(experts), self._pool.num_slots)]
        if self._pool.small and len(passes) == 1:
            return self._run_stack(layer, hidden, chosen)
        if len(chosen) == 1:
            return mx.stack(self._run_pass(layer, experts, [hidden] * len(experts)), axis=1)
        return self._run_block(layer, hidden, chosen, passes)

    def _run_stack(self, layer: int, hidden: mx.array, chosen: np.ndarray) -> mx.array:
        """All experts in one gather over the pool."""
        keys = (chosen.ravel() + layer * self._geometry.num_experts).tolist()
        slots = self._bring(layer, keys)
        entries = [self._pool.entry(slots[key], self._source.lead_in(key)) for key in keys]
        ids = mx.array(np.array(entries, dtype=np.uint32).reshape(chosen.shape))
        gate, up, down = (self._pool.stack[name] for name in COMPONENTS)
        if self.timed is None:
            return stacked_expert_forward(hidden, ids, gate, up, down)
        x = hidden[:, None, None, :]
        inner = self.timed("gate_up", lambda: [swiglu(gate.apply_gathered(x, ids), up.apply_gathered(x, ids))])
        return self.timed("down", lambda: [down.apply_gathered(inner[0], ids).squeeze(2)])[0]

    def _run_block(self, layer: int, hidden: mx.array, chosen: np.ndarray, passes: list[list[int]]) -> mx.array:
        """Tokens grouped by expert; a union larger than the pool runs in passes."""
        flat = chosen.ravel()
        outputs, order = [], []
        for experts in passes:
            pairs = [np.flatnonzero(flat == expert) for expert in experts]
            rows = [hidden[mx.array(pair // chosen.shape[1])] for pair in pairs]
            outputs += self._run_pass(layer, experts, rows)
            order += pairs
            if len(passes) > 1:
                mx.eval(outputs)
                self.settle()
        back = np.argsort(np.concatenate(order), kind="stable")
        return mx.concatenate(outputs)[mx.array(back)].reshape(*chosen.shape, -1)

    def _run_pass(self, layer: int, experts: Sequence[int], rows: Sequence[mx.array]) -> list[mx.array]:
        keys = [layer * self._geometry.num_experts + expert for expert in experts]
        slots = self._bring(layer, keys)
        views = [self._pool.components(slots[key], self._source.lead_in(key)) for key in keys]
        if self.timed is not None:
            return self._run_timed(rows, views, self.timed)
        return [expert_forward(x, view[GATE], view[UP], view[DOWN]) for x, view in zip(rows, views, strict=True)]

    def _run_timed(
        self, rows: Sequence[mx.array], views: Sequence[Mapping[str, QuantizedMatrix]], timed: Timed
    ) -> list[mx.array]:
        pairs = list(zip(rows, views, strict=True))
        inner = timed("gate_up", lambda: [swiglu(view[GATE].apply(x), view[UP].apply(x)) for x, view in pairs])
        return timed("down", lambda: [view[DOWN].apply(x) for x, view in zip(inner, views, strict=True)])

    def _bring(self, layer: int, keys: list[int]) -> Mapping[int, int]:
        """Demands records, waits for them, and holds them: their slots by key."""
        keys = list(dict.fromkeys(keys))
        self._held = self._transfer.demand(
            "expert",
            keys,
            self._step.event(layer),
            position=self._step.position,
            logical_bytes=len(keys) * self._geometry.record_bytes,
        )
        self._transfer.wait(self._held, position=self._step.position)
        return self._held.slots

    def settle(self) -> None:
        """Ends the leases of the layer that ran last; its results must have been evaluated."""
        if self._held is not None:
            self._transfer.scheduler.release(self._held)
            self._held = None

    def forget(self) -> None:
        """Drops what a failed pass holds; the scheduler ends its leases."""
        self._held = None
