"""Prefill: decides for every tile of a prompt how its records come, and runs each of its layers so (AFN-019, H5)."""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from workbench.runtime.crossover import Crossover, Estimate, LayerRun
from workbench.runtime.flow import Feed, Flow, Work
from workbench.runtime.pool import RecordPool
from workbench.runtime.records import RecordSource
from workbench.runtime.ring import LayerFeed, Ring
from workbench.runtime.step import Step
from workbench.runtime.transfer import Transfer
from workbench.runtime.union import Guests, Share, UnionFeed
from workbench.schema import EventLog

Mode = Literal["auto", "macro", "micro"]


class Prefill:
    """Tiles on one record pool. `start` announces a pass, then each of its layers is run in order."""

    def __init__(
        self,
        transfer: Transfer,
        source: RecordSource,
        pool: RecordPool,
        step: Step,
        log: EventLog,
        *,
        layers: Sequence[int],
        crossover: Crossover,
        share: Share,
        ring: Ring | None,
        mode: Mode,
    ) -> None:
        """`layers`: those of a pass, in order. Without a `ring` every tile is read as a union."""
        self._transfer, self._source, self._pool, self._step, self._log = transfer, source, pool, step, log
        self._layers, self._crossover, self._share, self._ring = layers, crossover, share, ring
        self.mode = mode
        """Forced, or chosen for each tile."""
        self._flow = Flow(transfer)
        self._guests = Guests(share.stay)
        self._macro = False
        self._left_ns = 0

    @property
    def has_ring(self) -> bool:
        """Whether there is memory for whole layers to pass through."""
        return self._ring is not None

    def start(self, num_tokens: int) -> None:
        """A tile begins: chooses its mode; whole layers start to flow at once."""
        estimate = self._crossover.predict(num_tokens, self._residents())
        wanted = estimate.mode if self.mode == "auto" else self.mode
        self._macro = wanted == "macro" and self._ring is not None and self._ring.borrow()
        if self._macro and self._ring is not None:
            self._ring.begin([self._step.event(layer) for layer in self._layers])
        else:
            self._give_back()
        self._left_ns = self._transfer.clock.now_ns()
        self._note(estimate)

    def end(self) -> None:
        """Something else than a tile begins: memory goes back, and what prefill left is like what decode keeps."""
        self._macro = False
        self._give_back()
        self._guests.forget()

    def run(self, layer: int, work: Work, heat: Mapping[int, int], num_tokens: int) -> None:
        """Computes one layer of a tile; `heat`: rows of the tile that use each record."""
        clock = self._transfer.clock
        start_ns, waited_ns = clock.now_ns(), self._flow.waited_ns
        absent = self._transfer.scheduler.pools["expert"].slots.partition(list(heat))[1]
        feed = self._feed(layer, heat, start_ns)
        self._flow.run(feed, work, position=self._step.position)
        end_ns = clock.now_ns()
        run = LayerRun(
            mode="macro" if isinstance(feed, LayerFeed) else "micro",
            num_tokens=num_tokens,
            before_ns=start_ns - self._left_ns,
            run_ns=end_ns - start_ns,
            waited_ns=self._flow.waited_ns - waited_ns,
        )
        self._crossover.observe(layer, run, self._by_expert(layer, heat), self._by_expert(layer, dict.fromkeys(absent, 1)) > 0)
        self._left_ns = end_ns

    def forget(self) -> None:
        """A pass failed: what it held is ended by the scheduler."""
        self._macro = False
        self._flow.forget()
        if self._ring is not None:
            self._ring.forget()

    def _feed(self, layer: int, heat: Mapping[int, int], now_ns: int) -> Feed:
        keys = list(heat)
        if self._macro and self._ring is not None and layer in self._layers:
            feed = LayerFeed(self._ring, layer, keys)
            hits, joined = feed.progress()
            event, num_bytes = self._step.event(layer), len(keys) * self._pool.geometry.record_bytes
            self._transfer.recorder.union(
                event, keys, now_ns, position=self._step.position, hits=hits, joined=joined, logical_bytes=num_bytes
            )
            return feed
        union = UnionFeed(self._transfer, self._source, self._pool, self._step, layer, self._share)
        union.plan(keys, heat, self._guests)
        return union

    def _by_expert(self, layer: int, counts: Mapping[int, int]) -> np.ndarray:
        """Counts of record keys, as an array over the experts of their layer."""
        by_expert = np.zeros(self._pool.geometry.num_experts)
        for key, count in counts.items():
            by_expert[key - layer * len(by_expert)] = count
        return by_expert

    def _residents(self) -> dict[int, np.ndarray]:
        """By layer, the experts whose records are in memory."""
        num_experts = self._pool.geometry.num_experts
        there = np.zeros((max(self._layers) + 1, num_experts), dtype=bool)
        keys = np.fromiter(self._transfer.scheduler.pools["expert"].slots.resident_keys, dtype=np.int64)
        there.reshape(-1)[keys[keys < there.size]] = True
        return {layer: there[layer] for layer in self._layers}

    def _give_back(self) -> None:
        if self._ring is not None:
            self._ring.give_back()

    def _note(self, estimate: Estimate) -> None:
        """Both predicted times, and which mode was chosen."""
        for name, predicted_ns in (("macro", estimate.macro_ns), ("micro", estimate.micro_ns)):
            self._log.add(
                self._left_ns,
                "mark",
                name=f"prefill_{name}",
                outcome="chosen" if self._macro == (name == "macro") else "rejected",
                request=self._step.request,
                phase=self._step.phase,
                position=self._step.position,
                duration_ns=round(predicted_ns),
                value=estimate.union,
            )
