"""Prefill modes on one layer: real reads of a store, compute replaced by a timed wait of given cost (hence emulated).

Every tile is run by forced micro, forced macro and the run-time choice, interleaved A/B/B/A; what a mode leaves in memory is
dropped between runs. How tokens choose experts is drawn, uniformly: `slice` has no router worth asking.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from pydantic import Field

from workbench.analysis.run_metrics import union_ns
from workbench.config import Config
from workbench.errors import BadInput
from workbench.experiments.bandwidth import known_bandwidth
from workbench.experiments.disk_rates import known_rates
from workbench.paths import runs_folder, store_folder
from workbench.progress import progress
from workbench.readers.clock import Clock, RealClock
from workbench.runtime.config import RuntimeConfig
from workbench.runtime.crossover import DiskRates
from workbench.runtime.flow import Views
from workbench.runtime.prefill import Mode, Prefill
from workbench.runtime.streamed import StreamedEngine
from workbench.scheduling.ticket import Scope
from workbench.schema import EventLog, Evidence, RunFolder
from workbench.schema.parquet import write_parquet
from workbench.units import GB, GIB, NS_PER_S, NS_PER_US

TABLE_NAME = "modes.parquet"
_WARM_UP = -1
"""Repeat that teaches the choice what compute and unions are like; it is not in the table."""
_ORDERS: tuple[tuple[Mode, ...], ...] = (("micro", "macro", "auto"), ("auto", "macro", "micro"))
"""One repeat after the other, so that drift falls on all modes alike."""
MODE_SCHEMA: dict[str, Any] = {
    "tile": pl.Int32,
    "repeat": pl.Int32,
    # asked for: micro | macro | auto; and what ran
    "mode": pl.String,
    "chosen": pl.String,
    "seconds": pl.Float64,
    # of it, compute stood still; at least one read was on its way
    "wait_s": pl.Float64,
    "io_s": pl.Float64,
    "physical_bytes": pl.Float64,
    # bytes of the records that the tile uses, and of the whole layer
    "union_bytes": pl.Float64,
    "layer_bytes": pl.Float64,
    # what the choice expected, seconds and records
    "expected_micro_s": pl.Float64,
    "expected_macro_s": pl.Float64,
    "expected_union": pl.Float64,
}
"""Columns of the table, one row a pass."""


class ModesConfig(Config):
    """Tiles, and what computing them costs."""

    profile: str = "slice"
    """Whose store is read."""
    layer: int = Field(0, ge=0)
    """The layer."""
    tiles: tuple[int, ...] = (16, 64, 256, 1024, 2048)
    """Tokens of each tile."""
    repeats: int = Field(4, ge=1)
    """Passes of each tile and mode."""
    before_us: float = Field(60.0, ge=0)
    """Compute of one token before its router has spoken (attention and router), microseconds."""
    pair_us: float = Field(6.0, ge=0)
    """Compute of one token in one routed expert, microseconds."""
    probe_s: float = Field(2.0, gt=0)
    """Seconds of each of two probes of the disk, where it has no envelope."""
    runtime: RuntimeConfig = RuntimeConfig(cache_bytes=GIB)
    """Memory and reads."""
    seed: int = 0
    """Of the routes."""


class TimedWork:
    """Experts that take a given time, one after the other, on a device of their own."""

    def __init__(self, clock: Clock, heat: Mapping[int, int], pair_us: float) -> None:
        self._clock, self._heat, self._pair_us = clock, heat, pair_us
        self._busy_until_ns = 0

    def begin(self, keys: Sequence[int], views: Sequence[Views]) -> int:
        """Queues the experts; when they will be done."""
        cost_ns = sum(self._heat[key] for key in keys) * self._pair_us * NS_PER_US
        self._busy_until_ns = round(max(self._busy_until_ns, self._clock.now_ns()) + cost_ns)
        return self._busy_until_ns

    def finish(self, begun: int) -> None:
        """Waits for them."""
        self._clock.sleep_until(begun)


def draw_heat(num_tokens: int, num_experts: int, top_k: int, rng: np.random.Generator) -> dict[int, int]:
    """Rows that each expert gets of a tile whose tokens choose `top_k` different ones each, all equally likely."""
    chosen = rng.random((num_tokens, num_experts)).argpartition(top_k - 1, axis=1)[:, :top_k]
    experts, rows = np.unique(chosen, return_counts=True)
    return dict(zip(experts.tolist(), rows.tolist(), strict=True))


@dataclass(frozen=True, kw_only=True)
class ModeRuns:
    """One row a pass, and the disk they are measured against."""

    passes: pl.DataFrame
    rates: DiskRates


def measure_modes(config: ModesConfig) -> ModeRuns:
    """Runs every tile in every mode. Raises BadInput when the cache is too small for a ring."""
    records = known_bandwidth(None, config.profile, config.runtime, config.probe_s)
    rates = known_rates(config.profile, config.runtime, records, config.probe_s)
    log = EventLog()
    with StreamedEngine(store_folder(config.profile), config.runtime, log, rates=rates) as engine:
        if config.layer >= engine.store.geometry.num_hidden_layers:
            raise BadInput(f"layer {config.layer}: the store has {engine.store.geometry.num_hidden_layers} layers")
        bench = _Bench(config, engine, log)
        rows, jobs = [], list(_jobs(config))
        with progress("passes of one layer", len(jobs)) as advance:
            for job in jobs:
                rows.append(bench.run(*job))
                advance(1)
    passes = pl.DataFrame(rows, schema=MODE_SCHEMA).filter(pl.col("repeat") != _WARM_UP)
    return ModeRuns(passes=passes, rates=rates)


def _jobs(config: ModesConfig) -> Iterator[tuple[int, int, Mode]]:
    for tile in config.tiles:
        yield tile, _WARM_UP, "micro"
        for repeat in range(config.repeats):
            for mode in _ORDERS[repeat % 2]:
                yield tile, repeat, mode


class _Bench:
    """One layer of one engine, tile after tile."""

    def __init__(self, config: ModesConfig, engine: StreamedEngine, log: EventLog) -> None:
        self._config, self._engine, self._log, self._clock = config, engine, log, RealClock()
        self._prefill: Prefill = engine.new_prefill(engine.transfer, log, (config.layer,))
        if self._prefill.buffer is None:
            raise BadInput("the cache is too small for a ring of two chunks: raise runtime.cache_bytes or runtime.ring_share")

    def run(self, tile: int, repeat: int, mode: Mode) -> dict[str, Any]:
        """One pass over a layer of which nothing is in memory."""
        config, geometry = self._config, self._engine.store.geometry
        rng = np.random.default_rng((config.seed, tile, repeat + 1))
        drawn = draw_heat(tile, geometry.num_experts, geometry.num_experts_per_tok, rng)
        heat = {config.layer * geometry.num_experts + expert: rows for expert, rows in drawn.items()}
        self._log.clear()
        start_ns = self._clock.now_ns()
        self._pass(tile, heat, mode)
        end_ns = self._clock.now_ns()
        row = {"tile": tile, "repeat": repeat, "mode": mode, "seconds": (end_ns - start_ns) / NS_PER_S}
        union_bytes = len(heat) * geometry.record_bytes
        layer_bytes = geometry.num_experts * geometry.record_bytes
        return row | {"union_bytes": union_bytes, "layer_bytes": layer_bytes} | _seen(self._log.frame())

    def _pass(self, tile: int, heat: Mapping[int, int], mode: Mode) -> None:
        prefill, config = self._prefill, self._config
        prefill.mode = mode
        tile_pass = prefill.begin_tile(Scope(0, "prefill", 0, tile))
        self._clock.sleep_until(self._clock.now_ns() + round(tile * config.before_us * NS_PER_US))
        work = TimedWork(self._clock, heat, config.pair_us)
        self._engine.transfer.run(tile_pass.run(config.layer, work, heat))
        tile_pass.close()
        prefill.end()
        scheduler = self._engine.scheduler
        scheduler.drop("expert", scheduler.pools["expert"].slots.resident_keys)


def _seen(events: pl.DataFrame) -> dict[str, Any]:
    """What the events of a pass tell about it."""
    reads, waits = events.filter(kind="ticket", store="expert"), events.filter(kind="wait", store="expert")
    came = reads.drop_nulls("ready_ns")
    marks = {row["name"]: row for row in events.filter(kind="mark").iter_rows(named=True)}
    micro, macro = marks["prefill_micro"], marks["prefill_macro"]
    return {
        "chosen": "macro" if macro["outcome"] == "chosen" else "micro",
        "wait_s": waits["duration_ns"].sum() / NS_PER_S,
        "io_s": union_ns(came["submit_ns"].to_numpy(), came["ready_ns"].to_numpy()) / NS_PER_S,
        "physical_bytes": reads["physical_bytes"].sum(),
        "expected_micro_s": micro["duration_ns"] / NS_PER_S,
        "expected_macro_s": macro["duration_ns"] / NS_PER_S,
        "expected_union": micro["value"],
    }


def crossover_rows(runs: ModeRuns) -> list[dict[str, Any]]:
    """One row a tile: both modes' medians, what was chosen and what that cost, and how fast macro read."""
    rows = []
    for (tile,), group in runs.passes.group_by("tile", maintain_order=True):
        seconds = {mode: _median(group.filter(mode=mode)["seconds"]) for mode in ("micro", "macro", "auto")}
        chosen = group.filter(mode="auto")["chosen"].mode().sort()[0]
        macro = group.filter(mode="macro")
        rate = _median(macro["physical_bytes"] / macro["io_s"])
        best = min(seconds["micro"], seconds["macro"])
        rows.append(
            {
                "tile": tile,
                "unique_fraction": _median(group["union_bytes"] / group["layer_bytes"]),
                **{f"{mode}_s": value for mode, value in seconds.items()},
                "chosen": chosen,
                "chosen_over_better": seconds[chosen] / best,
                "macro_overread_bytes": _median(macro["physical_bytes"] - macro["union_bytes"]),
                "macro_gbps": rate / GB,
                "macro_over_sequential": rate / runs.rates.sequential_bytes_per_s,
            }
        )
    return rows


def _median(series: pl.Series) -> float:
    value: Any = series.median()
    return float(value)


def run_modes(config: ModesConfig, *, root: Path | None = None) -> RunFolder:
    """Measures the modes and leaves a result folder with `artifacts/modes.parquet`. Raises BadInput."""
    folder = RunFolder.create(
        root or runs_folder(), "modes", config, profile=config.profile, evidence=Evidence.EMULATED, tags={"arm": "modes"}
    )
    with folder:
        runs = measure_modes(config)
        write_parquet(runs.passes, folder.artifacts / TABLE_NAME)
        rates = runs.rates
        tags = {
            "sparse_bytes_per_s": f"{rates.sparse_bytes_per_s:.0f}",
            "sequential_bytes_per_s": f"{rates.sequential_bytes_per_s:.0f}",
            "rates_source": rates.source,
        }
        folder.finish(tags=tags, tables={"crossover": crossover_rows(runs)})
    return folder
