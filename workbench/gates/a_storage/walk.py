"""The order of Gate A's work: grid, refined depths, reads beside compute, whole or split records, sparse or sequential reads.

Every phase runs its cells in rounds, each round in another order, so that drift falls on all cells alike and shows between
rounds.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import polars as pl

from workbench.analysis.storage import RUN_SCHEMA, Choice, best_depth, choose, select
from workbench.gates.a_storage.cells import (
    BUFFERED,
    MMAP,
    PAGE,
    PREAD,
    RECORD,
    SLOW_SWITCH,
    SPLIT,
    Cell,
    between,
    grid,
)  # fmt: skip
from workbench.gates.a_storage.probe import Probe
from workbench.units import MIB

_LAYER_BYTES = 128 * MIB
_SHARES = (0.125, 0.25, 0.5, 0.75, 1.0)
_EXTENT_DEPTH = 4
_COALESCE_BYTES = 4 * MIB
_MEASURE = {RECORD: "bandwidth_gbps", PAGE: "reads_per_s"}
"""Column that a reader is chosen by, for the read size of each class."""


class ReadPlan(Protocol):
    """Settings of the gate that the walk uses."""

    @property
    def sizes(self) -> tuple[str, ...]:
        """Read sizes of the grid."""

    @property
    def depths(self) -> tuple[int, ...]:
        """Queue depths of the grid."""

    @property
    def rounds(self) -> int:
        """Repeats of the grid."""

    @property
    def close_rounds(self) -> int:
        """Repeats of measurements that decide: refined cells, ratios, the crossover."""

    @property
    def seconds(self) -> float:
        """Length of one run of a cell, seconds."""

    @property
    def near_best(self) -> float:
        """A depth within this share of the best counts as equally good."""


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Reader and depth chosen for each class, and the buffered control at its best depth."""

    expert: Choice
    ple: Choice
    control: Choice


@dataclass(kw_only=True)
class Walk:
    """Runs phases on a probe and keeps their rows; after `end_s` (monotonic) a phase makes no further rounds."""

    plan: ReadPlan
    probe: Probe
    readers: Sequence[str]
    end_s: float
    started: Callable[[str], None]
    """Called with the name of each phase as it begins."""
    standing: Mapping[str, Choice] = field(default_factory=dict)
    """Choices of an earlier run, by the read size of their class; a choice stays while no other is better."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    passes: list[dict[str, Any]] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    """Phases that had fewer rounds than planned."""

    @property
    def runs(self) -> pl.DataFrame:
        """Table of all runs so far."""
        return pl.DataFrame(self.rows, schema=RUN_SCHEMA)

    @property
    def uncached(self) -> list[str]:
        """Readers that may be recommended, the preferred first; the buffered one where there is no other."""
        return [name for name in self.readers if name not in (BUFFERED, MMAP)] or [BUFFERED]

    def go(self) -> Choices:
        """Runs all phases and returns the choices."""
        plan, layout = self.plan, self.probe.layout
        memory = len(self.probe.memory)
        self.phase("grid", grid(self.readers, plan.sizes, plan.depths, layout, memory), plan.rounds)
        self.phase("warm", self._warm(), plan.rounds)
        self.phase("refine", [cell for size in (RECORD, PAGE) for cell in self._refined(size)], plan.close_rounds)
        choices = self._choices()
        self.phase("beside", self._beside(choices), plan.close_rounds)
        self.phase("split", self._split(choices.expert), plan.close_rounds)
        self._crossover(choices.expert)
        return choices

    def phase(self, name: str, cells: Sequence[Cell], rounds: int) -> None:
        """Measures every cell once per round, in a new random order each round."""
        self.started(name)
        for number in range(rounds):
            if number and time.monotonic() > self.end_s:
                self.cut.append(name)
                return
            for index in self.probe.rng.permutation(len(cells)):
                row = self.probe.measure(cells[index], self.plan.seconds)
                self.rows.append({"phase": name, "round": number, **row})

    def _cold(self, size: str) -> pl.DataFrame:
        return select(self.runs, size=size, cache="cold", beside="idle")

    def _warm(self) -> list[Cell]:
        depths = (self.plan.depths[0], self.plan.depths[-1])
        cells = grid(self.readers, (PAGE, RECORD), depths, self.probe.layout, len(self.probe.memory))
        return [Cell(**{**vars(cell), "cache": "warm"}) for cell in cells]

    def _refined(self, size: str) -> list[Cell]:
        """Each reader that may win, and the control, at each depth from below the smallest near its best to above the best."""
        measure, cold = _MEASURE[size], self._cold(size)
        cells = []
        for reader in dict.fromkeys((*self.uncached, BUFFERED)):
            enough = choose(cold, [reader], measure, self.plan.near_best).depth
            most = self.probe.layout.most_depth(size, len(self.probe.memory))
            depths = set(between(enough, best_depth(cold, reader, measure), most))
            if (before := self.standing.get(size)) and before.reader == reader and before.depth <= most:
                depths.add(before.depth)
            cells += [Cell(reader=reader, size=size, depth=depth) for depth in sorted(depths)]
        return cells

    def _choices(self) -> Choices:
        found = {
            size: choose(self._cold(size), self.uncached, measure, self.plan.near_best, self.standing.get(size))
            for size, measure in _MEASURE.items()
        }
        control = best_depth(self._cold(RECORD), BUFFERED, _MEASURE[RECORD])
        return Choices(expert=found[RECORD], ple=found[PAGE], control=Choice(reader=BUFFERED, depth=control))

    def _beside(self, choices: Choices) -> list[Cell]:
        """The choices and single pages, alone and beside each load; threads too, and threads as Python would run them."""
        readers = dict.fromkeys((choices.expert.reader, choices.ple.reader, PREAD if PREAD in self.readers else BUFFERED))
        kinds = [(RECORD, choices.expert.depth), (PAGE, 1), (PAGE, choices.ple.depth)]
        cells = [
            Cell(reader=reader, size=size, depth=depth, beside=beside)
            for reader in readers
            for size, depth in dict.fromkeys(kinds)
            for beside in ("idle", "mlx", "python")
        ]
        if PREAD in self.readers:
            cells += [Cell(reader=SLOW_SWITCH, size=PAGE, depth=1, beside=beside) for beside in ("idle", "python")]
        return cells

    def _split(self, choice: Choice) -> list[Cell]:
        """Cells of whole and of split records; split ones at twice the depth, so that bytes in flight are equal."""
        depth = min(choice.depth, max(1, self.probe.layout.most_depth(SPLIT, len(self.probe.memory)) // 2))
        return [Cell(reader=choice.reader, size=size, depth=times * depth) for size, times in ((RECORD, 1), (SPLIT, 2))]

    def _crossover(self, choice: Choice) -> None:
        """Passes over random records of a layer, sorted and coalesced as in prefill, and over the layer as one extent."""
        self.started("crossover")
        layout, size = self.probe.layout, self.probe.path.stat().st_size
        count = max(1, min(layout.num_experts, min(size, _LAYER_BYTES) // layout.record_bytes))
        jobs: list[float | None] = [None, *_SHARES]
        for number in range(self.plan.close_rounds):
            if number and time.monotonic() > self.end_s:
                self.cut.append("crossover")
                return
            for index in self.probe.rng.permutation(len(jobs)):
                self.passes.append({"round": number, **self._pass(choice, jobs[index], count)})

    def _pass(self, choice: Choice, share: float | None, count: int) -> dict[str, Any]:
        """One cold pass over a share of a layer's `count` records; None: over the extent that holds them all."""
        probe = self.probe
        layer_bytes = count * probe.layout.record_bytes
        start = probe.part(layer_bytes)
        if share is None:
            windows, records = probe.layout.extent(start, layer_bytes), count
            seconds, cached = probe.timed_pass(windows, choice.reader, max(_EXTENT_DEPTH, choice.depth), 0)
        else:
            records = max(1, round(share * count))
            windows = probe.layout.windows_of(RECORD, start, np.sort(probe.rng.choice(count, records, replace=False)))
            seconds, cached = probe.timed_pass(windows, choice.reader, choice.depth, _COALESCE_BYTES)
        how = "sequential" if share is None else "sparse"
        return {"how": how, "share": share, "records": records, "seconds": seconds, "cached_before": cached}
