"""Prefill: chooses macro or micro mode for each tile of a prompt and runs the layers of the tile (hypothesis H5)."""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from workbench.loading.records import RecordSource
from workbench.loading.transfer import Transfer
from workbench.loading.wait import Loading
from workbench.runtime.chunk_buffer import ChunkBuffer, LayerFeed
from workbench.runtime.crossover import Crossover, LayerRun, ReadEstimate
from workbench.runtime.flow import Feed, Flow, Work
from workbench.runtime.memory import RecordMemory
from workbench.runtime.union import PrefillShare, RetainedRecords, UnionFeed
from workbench.scheduling.ticket import Scope
from workbench.schema import EventLog

Mode = Literal["auto", "macro", "micro"]


class Prefill:
    """Prefill driver of one record memory. Measured disk and compute times serve the choice for later tiles."""

    def __init__(
        self,
        transfer: Transfer,
        source: RecordSource,
        memory: RecordMemory,
        log: EventLog,
        *,
        layers: Sequence[int],
        crossover: Crossover,
        share: PrefillShare,
        buffer: ChunkBuffer | None,
        mode: Mode,
    ) -> None:
        """`layers`: indices in the order of a pass. Without a `buffer` every tile is read as a union (micro)."""
        self.transfer, self.source, self.memory = transfer, source, memory
        self.layers, self.crossover, self.share, self.buffer = layers, crossover, share, buffer
        self.mode = mode
        """The configured mode, or auto: chosen for each tile."""
        self.retained = RetainedRecords(share.stay)
        self._log = log

    def begin_tile(self, scope: Scope) -> "TilePass":
        """Begins a tile: chooses its mode; in macro mode reads of whole layers start at once."""
        estimate = self.crossover.predict(scope.num_tokens, self._residents())
        wanted = estimate.mode if self.mode == "auto" else self.mode
        origins = [scope.origin(layer) for layer in self.layers]
        is_macro = wanted == "macro" and self.buffer is not None and self.buffer.take_over(origins)
        if not is_macro:
            self._give_back()
        tile = TilePass(self, scope, is_macro=is_macro)
        self._note(scope, tile.left_ns, estimate, is_macro=is_macro)
        return tile

    def end(self) -> None:
        """Called before decode: returns borrowed memory; records left by prefill become ordinary cache entries."""
        self._give_back()
        self.retained.clear()

    def by_expert(self, layer: int, counts: Mapping[int, int]) -> np.ndarray:
        """Counts of record keys, as an array over the experts of their layer."""
        by_expert = np.zeros(self.memory.geometry.num_experts)
        for key, count in counts.items():
            by_expert[key - layer * len(by_expert)] = count
        return by_expert

    def _residents(self) -> dict[int, np.ndarray]:
        """Experts whose records are in memory, by layer."""
        num_experts = self.memory.geometry.num_experts
        there = np.zeros((max(self.layers) + 1, num_experts), dtype=bool)
        keys = np.fromiter(self.transfer.scheduler.pools["expert"].slots.resident_keys, dtype=np.int64)
        there.reshape(-1)[keys[keys < there.size]] = True
        return {layer: there[layer] for layer in self.layers}

    def _give_back(self) -> None:
        if self.buffer is not None:
            self.buffer.give_back()

    def _note(self, scope: Scope, now_ns: int, estimate: ReadEstimate, *, is_macro: bool) -> None:
        """Logs both predicted times and the chosen mode."""
        for name, predicted_ns in (("macro", estimate.macro_ns), ("micro", estimate.micro_ns)):
            self._log.add(
                now_ns,
                "mark",
                name=f"prefill_{name}",
                outcome="chosen" if is_macro == (name == "macro") else "rejected",
                request=scope.request,
                phase=scope.phase,
                position=scope.position,
                duration_ns=round(predicted_ns),
                value=estimate.union,
            )


class TilePass:
    """The pass of one tile through the layers."""

    def __init__(self, prefill: Prefill, scope: Scope, *, is_macro: bool) -> None:
        """`is_macro`: whole layers are read, through the chunk buffer."""
        self._prefill, self._scope, self._is_macro = prefill, scope, is_macro
        self._flow = Flow(prefill.transfer)
        self.left_ns = prefill.transfer.clock.now_ns()
        """When compute of the previous layer ended."""

    def run(self, layer: int, work: Work, heat: Mapping[int, int]) -> Loading[None]:
        """Computes one layer; `heat`: rows of the tile that use each record."""
        prefill, flow = self._prefill, self._flow
        clock = prefill.transfer.clock
        start_ns, waited_ns = clock.now_ns(), flow.waited_ns
        absent = prefill.transfer.scheduler.pools["expert"].slots.partition(list(heat))[1]
        feed = self._feed(layer, heat, start_ns)
        yield from flow.run(feed, work)
        end_ns = clock.now_ns()
        run = LayerRun(
            mode="macro" if isinstance(feed, LayerFeed) else "micro",
            num_tokens=self._scope.num_tokens,
            before_ns=start_ns - self.left_ns,
            run_ns=end_ns - start_ns,
            waited_ns=flow.waited_ns - waited_ns,
        )
        missing = prefill.by_expert(layer, dict.fromkeys(absent, 1)) > 0
        prefill.crossover.observe(layer, run, prefill.by_expert(layer, heat), missing)
        self.left_ns = end_ns

    def close(self) -> None:
        """Ends the pass, also after a failure: the chunk buffer is free for other tiles."""
        if self._is_macro and self._prefill.buffer is not None:
            self._prefill.buffer.leave()
        self._is_macro = False

    def _feed(self, layer: int, heat: Mapping[int, int], now_ns: int) -> Feed:
        prefill, keys, origin = self._prefill, list(heat), self._scope.origin(layer)
        if self._is_macro and prefill.buffer is not None and layer in prefill.layers:
            feed = LayerFeed(prefill.buffer, layer, keys)
            hits, joined = feed.progress()
            num_bytes = len(keys) * prefill.memory.geometry.record_bytes
            prefill.transfer.recorder.union(origin, keys, now_ns, hits=hits, joined=joined, logical_bytes=num_bytes)
            return feed
        union = UnionFeed(prefill.transfer, prefill.source, prefill.memory, origin, prefill.share)
        union.plan(keys, heat, prefill.retained)
        return union
