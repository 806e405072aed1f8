"""Gate A: what does this disk give, to which reader, at which size and depth, cold and warm, alone and beside compute?

Physical: the disk of the profile's store, by a file of Gate A's own that is laid out in the profile's sizes. Thresholds are
pre-registered in `StorageConfig`. The envelope it writes is what bounds, simulations and paced runs use.
"""

import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import polars as pl
from pydantic import BeforeValidator, Field

from workbench.abba.power import power_state
from workbench.abba.records import WatchRecord
from workbench.abba.watch import read_machine, summarise
from workbench.analysis import storage as tables
from workbench.analysis.storage_envelope import ENVELOPE_NAME, envelope_of, recommend
from workbench.gates.a_storage_cells import BUFFERED, MMAP, PAGE, PREAD, RECORD, SIZES, SPLIT, URING, Layout
from workbench.gates.a_storage_file import probe_file
from workbench.gates.a_storage_probe import Probe, missing_readers
from workbench.gates.a_storage_walk import Choices, Walk
from workbench.gates.base import Findings, Gate, GateConfig
from workbench.gates.traces import profile_geometry
from workbench.hardware import filesystem_identity, machine
from workbench.paths import store_folder
from workbench.schema import Criterion, Evidence, RunFolder
from workbench.schema.envelopes import Envelope, Measured
from workbench.schema.results import write_json
from workbench.units import GIB, KIB, MIB, NS_PER_S, format_bytes, parse_bytes

_ALL_DEPTHS = (1, 2, 4, 8, 16, 32, 64)
Bytes = Annotated[int, BeforeValidator(parse_bytes)]


class StorageConfig(GateConfig):
    """Settings of Gate A; the thresholds were registered before the first read."""

    file_bytes: Bytes = Field(default=4 * GIB, ge=8 * MIB)
    """Size of the probe file, a multiple of 8 MiB; it lies beside the profile's store."""
    keep_file: bool = False
    """Leave the probe file for the next run; else it is removed."""
    in_flight_bytes: Bytes = Field(default=96 * MIB, ge=16 * MIB)
    """Memory for reads in flight; it bounds the depth of large reads."""
    sizes: tuple[str, ...] = SIZES
    """Read sizes of the grid; record and page 4 KiB are needed."""
    depths: tuple[int, ...] = (1, 4, 16, 64)
    """Depths of the grid; what comes near the best is refined by halves and doubles."""
    seconds: float = Field(default=0.15, gt=0)
    """Of one run of one cell."""
    rounds: int = Field(default=3, ge=1)
    """Repeats of the grid."""
    close_rounds: int = Field(default=7, ge=1)
    """Repeats of what decides; fewer than 6 give no interval."""
    max_seconds: float = 330.0
    """After which no phase makes further rounds (writing the file not counted)."""
    full: bool = False
    """Every depth from 1 to 64, longer runs and more repeats, however long it takes."""
    near_best: float = Field(default=0.9, gt=0, le=1)
    """The smallest depth within this share of the best is recommended: beyond it a read only waits longer in the queue."""
    min_spread_runs: int = 14
    """A.repeatable: fewest runs of each recommended cell, from several phases, that tell its spread."""
    max_spread: float = 0.10
    """A.repeatable: the middle four fifths of the recommended cells' repeats lie within this share of their median."""
    min_reader_ratio: float = 0.90
    """A.reader: record bandwidth of the recommended reader over the buffered control at its best, cold."""
    max_busy_latency: float = 3.0
    """A.interpreter: time until a single page is seen beside a busy Python thread, over alone."""
    max_slowdown: float = 1.25
    """A.interference: time of a step of MLX while records are read at the recommended depth, over alone."""
    split_ratio: float = 0.95
    """Components may be read apart when that surely keeps this share of whole records' bandwidth."""
    max_other_share: float = 0.25
    """A.quiet: share of the cores that other processes may take."""

    @property
    def effective(self) -> "StorageConfig":
        """What is run: with `full`, finer and longer."""
        if not self.full:
            return self
        return self.model_copy(
            update={"depths": _ALL_DEPTHS, "seconds": 1.0, "rounds": 7, "close_rounds": 15, "max_seconds": 1e9}
        )


_REGISTERED = (
    "near_best",
    "min_spread_runs",
    "max_spread",
    "min_reader_ratio",
    "max_busy_latency",
    "max_slowdown",
    "max_other_share",
)


@dataclass(frozen=True, kw_only=True)
class Measures:
    """What the criteria turn on."""

    cold_share: float
    """Of cold runs whose part of the file `mincore` saw out of memory before the first read."""
    spread: float
    """The wider one of the recommended cells'."""
    reader_ratio: tables.Median
    busy_latency: tables.Median
    slowdown: tables.Median
    split_ratio: tables.Median
    crossover: float
    fewest_repeats: int
    """Behind any of the medians."""
    fewest_spread: int
    """Runs of a recommended cell."""


def measure(runs: pl.DataFrame, passes: pl.DataFrame, choices: Choices) -> Measures:
    """The figures behind the verdict."""
    expert = _cell(choices.expert.reader, RECORD, choices.expert.depth)
    ple = _cell(choices.ple.reader, PAGE, choices.ple.depth)
    page = _cell(choices.ple.reader, PAGE, 1)
    refined, beside, halves = (runs.filter(phase=name) for name in ("refine", "beside", "split"))
    cold = runs.filter(cache="cold")
    repeats = [tables.select(runs, **cell)["bandwidth_gbps"].to_list() for cell in (expert, ple)]
    reader = tables.ratio_of(refined, expert, _cell(BUFFERED, RECORD, choices.control.depth), "useful_gbps")
    busy = tables.ratio_of(beside, {**page, "beside": "python"}, page, "submit_to_seen_p50_us")
    split = tables.ratio_of(halves, {"size": SPLIT}, {"size": RECORD}, "useful_gbps")
    slowdown = tables.slowdown_of(beside, {**expert, "beside": "mlx"})
    return Measures(
        cold_share=int((cold["cached_before"] == 0).sum()) / len(cold),
        spread=max(tables.spread_of(values) for values in repeats),
        reader_ratio=reader,
        busy_latency=busy,
        slowdown=slowdown,
        split_ratio=split,
        crossover=tables.crossover(tables.crossover_table(passes)),
        fewest_repeats=min(reader.count, busy.count, slowdown.count, split.count),
        fewest_spread=min(len(values) for values in repeats),
    )


def _cell(reader: str, size: str, depth: int) -> dict[str, Any]:
    return {"reader": reader, "size": size, "depth": depth, "cache": "cold", "beside": "idle"}


def criteria_of(found: Measures, config: StorageConfig, *, quiet: bool = True) -> tuple[Criterion, ...]:
    """The registered clauses with their figures; what was timed beside other heavy processes decides nothing."""
    spread = found.spread if found.fewest_spread >= config.min_spread_runs else math.nan
    clauses: list[tuple[str, str, tables.Median, str, float]] = [
        (
            "A.repeatable",
            f"spread of the recommended cells over at least {config.min_spread_runs} runs each",
            tables.Median(value=found.spread, low=spread, high=spread, count=found.fewest_spread),
            "<=",
            config.max_spread,
        ),
        ("A.reader", "recommended reader over buffered, records, cold", found.reader_ratio, ">=", config.min_reader_ratio),
        (
            "A.interpreter",
            "a page's time to be seen beside busy Python, over alone",
            found.busy_latency,
            "<=",
            config.max_busy_latency,
        ),
        ("A.interference", "a step of MLX while records are read, over alone", found.slowdown, "<=", config.max_slowdown),
    ]
    cold = tables.Median(value=found.cold_share, low=found.cold_share, high=found.cold_share, count=found.fewest_spread)
    words = "share of cold runs whose part of the file mincore saw out of memory before the first read"
    timed = [_criterion(*clause, decides=quiet) for clause in clauses]
    return (_criterion("A.cold", words, cold, ">=", 1.0, decides=True), *timed)


def _criterion(code: str, words: str, median: tables.Median, relation: Any, threshold: float, *, decides: bool) -> Criterion:
    low, high = (median.low, median.high) if decides else (math.nan, math.nan)
    return Criterion(code=code, statement=words, value=median.value, low=low, high=high, relation=relation, threshold=threshold)


def is_quiet(config: StorageConfig, watch: WatchRecord) -> bool:
    """Whether nothing else worth mentioning ran on the machine."""
    allowed = config.max_other_share * machine().num_cores
    return watch.other_cores + watch.stolen_cores <= allowed and watch.swap_out_bytes <= 0


def limits_of(found: Measures, config: StorageConfig, watch: WatchRecord, cut: Sequence[str]) -> dict[str, str]:
    """By clause code, why this run can't give a full pass."""
    limits, wanted = {}, StorageConfig().close_rounds
    if config.smoke or found.fewest_repeats < wanted:
        limits["A.sample"] = (
            f"{'smoke run: ' if config.smoke else ''}a full verdict needs {wanted} repeats of what decides, "
            f"this run has {found.fewest_repeats}" + (f" (out of time in {', '.join(cut)})" if cut else "")
        )
    if not is_quiet(config, watch):
        limits["A.quiet"] = (
            f"not alone on the machine: other processes took {watch.other_cores:.2f} cores, the hypervisor "
            f"{watch.stolen_cores:.2f}, {format_bytes(watch.swap_out_bytes)} were swapped out; allowed are "
            f"{config.max_other_share * machine().num_cores:.2g} cores and no swapping, so what was timed decides nothing"
        )
    return limits


def conditions_of(config: StorageConfig, filesystem: str, missing: Mapping[str, str]) -> list[str]:
    """What every verdict of this configuration rests on."""
    conditions = [f"a file of {format_bytes(config.file_bytes)} of random bytes on {filesystem}"]
    if machine().virtual_machine:
        conditions.append("virtual machine: cold means out of the guest's page cache; the host's cache is not seen")
    conditions += [f"not measured: {name} ({reason})" for name, reason in missing.items()]
    defaults = StorageConfig()
    if changed := [name for name in _REGISTERED if getattr(config, name) != getattr(defaults, name)]:
        conditions.append(f"thresholds differ from the registered ones: {', '.join(changed)}")
    return conditions


def _run(config: StorageConfig, folder: RunFolder) -> Findings:
    place = store_folder(config.profile).parent
    layout = Layout.of(profile_geometry(config.profile))
    plan = config.effective
    _say(
        f"gate A: a probe file of {format_bytes(plan.file_bytes)} in {place}" + ("" if plan.keep_file else ", removed afterwards")
    )
    before, power = read_machine(None), power_state()
    with probe_file(place, plan.file_bytes, seed=plan.seed, keep=plan.keep_file) as path:
        missing = missing_readers(path)
        readers = [name for name in (URING, PREAD, BUFFERED, MMAP) if name not in missing]
        probe = Probe.on(path, layout, plan.in_flight_bytes, plan.seed)
        walk = Walk(plan=plan, probe=probe, readers=readers, end_s=time.monotonic() + plan.max_seconds, started=_phase)
        try:
            choices = walk.go()
        finally:
            _save_runs(walk, folder)
    watch = summarise([before, read_machine(None)], power, power_state())
    return _findings(config, folder, walk, choices, watch, missing)


def _phase(name: str) -> None:
    _say(f"gate A: {name}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _save_runs(walk: Walk, folder: RunFolder) -> None:
    """Every run so far as a table and as events; also when the walk was interrupted."""
    (folder.artifacts / "tables").mkdir(exist_ok=True)
    walk.runs.write_parquet(folder.artifacts / "tables" / "runs.parquet")
    for row in walk.rows:
        folder.events.add(
            row["start_ns"],
            "mark",
            store="ple" if row["size"].startswith("page") else "expert",
            name=f"{row['phase']} {row['round']}: {', '.join(str(row[part]) for part in tables.CELL)}",
            submit_ns=row["start_ns"],
            duration_ns=int(row["seconds"] * NS_PER_S),
            logical_bytes=row["logical_bytes"],
            physical_bytes=row["physical_bytes"],
            queue_depth=row["depth"],
            value=row["bandwidth_gbps"],
        )


def _findings(
    config: StorageConfig, folder: RunFolder, walk: Walk, choices: Choices, watch: WatchRecord, missing: Mapping[str, str]
) -> Findings:
    from workbench.gates.a_storage_evidence import made_tables, metrics_of, save_figures, shown_tables

    runs, passes = walk.runs, pl.DataFrame(walk.passes)
    found = measure(runs, passes, choices)
    envelope = _envelope(config, folder, walk, choices, found)
    write_json(folder.artifacts / ENVELOPE_NAME, envelope.model_dump(mode="json"))
    made = made_tables(runs, passes, envelope)
    for name, table in made.items():
        table.write_parquet(folder.artifacts / "tables" / f"{name}.parquet")
    save_figures(made, runs, f"{config.profile}, {format_bytes(config.file_bytes)} file", folder.artifacts / "figures")
    filesystem = filesystem_identity(store_folder(config.profile))
    return Findings(
        criteria=criteria_of(found, config, quiet=is_quiet(config, watch)),
        summary=_summary(envelope, found),
        conditions=conditions_of(config, filesystem, missing),
        limits=limits_of(found, config, watch, walk.cut),
        enables=("bounds, simulations and paced runs use this envelope",),
        metrics=metrics_of(runs, choices, found.slowdown.value),
        tables=shown_tables(made, watch),
        tags={"filesystem": filesystem, "expert": _words(choices.expert), "ple": _words(choices.ple)},
    )


def _envelope(config: StorageConfig, folder: RunFolder, walk: Walk, choices: Choices, found: Measures) -> Envelope:
    layout, runs = walk.probe.layout, walk.runs
    measured = Measured(
        profile=config.profile,
        machine=machine().digest,
        filesystem=filesystem_identity(store_folder(config.profile)),
        unix_s=folder.environment["started_unix_s"],
        expert=recommend(runs, choices.expert, RECORD, layout.read_bytes(RECORD)),
        ple=recommend(runs, choices.ple, PAGE, 4 * KIB),
        sequential_from=found.crossover,
        split_components=found.split_ratio.low >= config.split_ratio,
    )
    source = f"Gate A, run {folder.path.name}"
    # the larger of the two, so that what the disk does and not the latency shows
    large = max((RECORD, *config.sizes), key=layout.read_bytes)
    return envelope_of(
        runs, name=f"{config.profile}-{folder.path.name}", source=source, page=PAGE, large=large, measured=measured
    )


def _words(choice: tables.Choice) -> str:
    return f"{choice.reader} at depth {choice.depth}"


def _summary(envelope: Envelope, found: Measures) -> str:
    measured = envelope.measured
    assert measured is not None
    expert, ple = measured.expert, measured.ple
    never = found.crossover > 1
    return (
        f"Records: {expert.reader} at depth {expert.depth}, {expert.bandwidth_gbps:.2f} GB/s (±{expert.spread:.0%}). "
        f"Pages: {ple.reader} at depth {ple.depth}, {ple.reads_per_s:,.0f} reads/s (±{ple.spread:.0%}). "
        f"Components apart keep {found.split_ratio.value:.0%} of whole records' bandwidth; "
        + ("sparse reads win at every share of a layer." if never else f"one extent wins from {found.crossover:.0%} of a layer.")
    )


GATE = Gate(
    name="a_storage",
    question="What does this disk give, to which reader, at which size and depth?",
    evidence=Evidence.PHYSICAL,
    config=StorageConfig,
    smoke_settings={
        "file_bytes": 64 * MIB,
        "in_flight_bytes": 24 * MIB,
        "sizes": (PAGE, RECORD, SIZES[-1]),
        "depths": (1, 8),
        "seconds": 0.02,
        "rounds": 1,
        "close_rounds": 2,
        "max_seconds": 10.0,
    },
    module=__name__,
    shown={
        "recommended": "Reader and depth for each class (physical)",
        "readers": "Best of each reader and size, cold, alone (physical)",
        "beside": "Beside compute and a busy interpreter (physical)",
        "split": "Whole records against gate+up and down apart, equal bytes in flight (physical)",
        "crossover": "So many records of a layer against one extent with all of them (physical)",
    },
    prepare=lambda _: None,
    inputs=lambda config: {
        "filesystem": filesystem_identity(store_folder(config.profile)),
        "layout": str(Layout.of(profile_geometry(config.profile))),
    },
    run=_run,
)
"""The gate, as the runner knows it."""
