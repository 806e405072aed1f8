"""Measures prefill modes on one layer: real reads of a store, with compute replaced by a timed wait (hence emulated).

Every tile runs in forced micro, forced macro and automatic mode, in an order that is reversed in every other repeat; cached
records are dropped after each run. Experts are drawn uniformly, since `slice` has random weights and no meaningful routes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import polars as pl
from pydantic import Field

from workbench.analysis.run_metrics import union_ns
from workbench.config import Config, Seed
from workbench.errors import BadInput
from workbench.experiments.bandwidth import known_bandwidth
from workbench.experiments.disk_rates import known_rates
from workbench.paths import Profile, runs_folder, store_folder
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
"""Repeat number of a warm-up pass, from which automatic mode learns compute time and union size; not in the table."""
_ORDERS: tuple[tuple[Mode, ...], ...] = (("micro", "macro", "auto"), ("auto", "macro", "micro"))
"""Orders of even and of odd repeats, so that drift of the machine affects all modes alike."""
MODE_SCHEMA: dict[str, Any] = {
    "tile": pl.Int32,
    "repeat": pl.Int32,
    # mode that was set (micro | macro | auto), and mode that ran (micro | macro)
    "mode": pl.String,
    "chosen": pl.String,
    "seconds": pl.Float64,
    # seconds of exposed wait; seconds with at least one read in flight
    "wait_s": pl.Float64,
    "io_s": pl.Float64,
    "physical_bytes": pl.Float64,
    # bytes of the records that the tile uses, and of the whole layer
    "union_bytes": pl.Float64,
    "layer_bytes": pl.Float64,
    # estimates of the automatic choice: seconds of each mode, and distinct records
    "expected_micro_s": pl.Float64,
    "expected_macro_s": pl.Float64,
    "expected_union": pl.Float64,
}
"""Columns of the table; one row per pass."""


class ModesConfig(Config):
    """Settings of a measurement of prefill modes."""

    profile: Profile = "slice"
    """Profile whose store is read."""
    layer: int = Field(0, ge=0)
    """Index of the layer that is read."""
    tiles: tuple[Annotated[int, Field(ge=1, le=1 << 17)], ...] = (16, 64, 256, 1024, 2048)
    """Sizes of the tiles, tokens."""
    repeats: int = Field(4, ge=1)
    """Passes per tile and mode."""
    before_us: float = Field(60.0, ge=0, le=1e9)
    """Assumed compute time per token until its router's ids are known (attention and router), microseconds."""
    pair_us: float = Field(6.0, ge=0, le=1e9)
    """Assumed compute time per token and routed expert, microseconds."""
    probe_s: float = Field(2.0, gt=0)
    """Seconds of each of the two probes of a disk without an envelope."""
    runtime: RuntimeConfig = RuntimeConfig(cache_bytes=GIB)
    """Cache and reads."""
    seed: Seed = 0
    """Seed of the drawn routes."""


class TimedWork:
    """Expert compute as a timed wait: experts run one after the other, asynchronously, as on a device.

    `heat`: tokens per expert key; `pair_us`: microseconds per token and expert.
    """

    def __init__(self, clock: Clock, heat: Mapping[int, int], pair_us: float) -> None:
        self._clock, self._heat, self._pair_us = clock, heat, pair_us
        self._busy_until_ns = 0

    def begin(self, keys: Sequence[int], views: Sequence[Views]) -> int:
        """Queues the experts `keys`; returns the clock's time at which they are done, nanoseconds."""
        cost_ns = sum(self._heat[key] for key in keys) * self._pair_us * NS_PER_US
        self._busy_until_ns = round(max(self._busy_until_ns, self._clock.now_ns()) + cost_ns)
        return self._busy_until_ns

    def finish(self, begun: int) -> None:
        """Waits until `begun`, the time that `begin` returned."""
        self._clock.sleep_until(begun)


def draw_heat(num_tokens: int, num_experts: int, top_k: int, rng: np.random.Generator) -> dict[int, int]:
    """Tokens per chosen expert, for a tile whose tokens choose `top_k` different experts each, all equally likely."""
    chosen = rng.random((num_tokens, num_experts)).argpartition(top_k - 1, axis=1)[:, :top_k]
    experts, rows = np.unique(chosen, return_counts=True)
    return dict(zip(experts.tolist(), rows.tolist(), strict=True))


@dataclass(frozen=True, kw_only=True)
class ModeRuns:
    """Measured passes (columns `MODE_SCHEMA`), and the disk rates that the automatic choice used."""

    passes: pl.DataFrame
    rates: DiskRates


def measure_modes(config: ModesConfig) -> ModeRuns:
    """Runs every tile in every mode. Raises BadInput on an unknown layer, and on a cache too small for macro's ring."""
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
    """Measures passes over one layer of one engine."""

    def __init__(self, config: ModesConfig, engine: StreamedEngine, log: EventLog) -> None:
        self._config, self._engine, self._log, self._clock = config, engine, log, RealClock()
        self._prefill: Prefill = engine.new_prefill(engine.transfer, log, (config.layer,))
        if self._prefill.buffer is None:
            raise BadInput("the cache is too small for a ring of two chunks: raise runtime.cache_bytes or runtime.ring_share")

    def run(self, tile: int, repeat: int, mode: Mode) -> dict[str, Any]:
        """Measures one pass over the layer, none of whose records are cached; returns a row of the table."""
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
    """The table's columns that are computed from the events of one pass."""
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
    """One row per tile: median time per mode, the chosen mode, its time divided by the better mode's, macro's read rate."""
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
    """Measures the modes into a result folder with `artifacts/modes.parquet`. Raises BadInput as `measure_modes` does."""
    config.runtime.check_envelope()
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
