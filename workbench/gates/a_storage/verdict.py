"""Gate A's figures from its runs, its clauses, and limits and conditions of its verdict."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from workbench.abba.records import WatchRecord
from workbench.analysis import storage as tables
from workbench.gates.a_storage.cells import BUFFERED, PAGE, RECORD, SPLIT
from workbench.gates.a_storage.config import REGISTERED, StorageConfig
from workbench.gates.a_storage.walk import Choices
from workbench.gates.shared.verdicts import changed_thresholds, clause, machine_conditions
from workbench.hardware import machine
from workbench.schema import Criterion
from workbench.units import format_bytes


@dataclass(frozen=True, kw_only=True)
class Measures:
    """Figures that the clauses turn on."""

    cold_share: float
    """Share of cold runs whose part of the file `mincore` saw out of memory before the first read."""
    spread: float
    """Spread of the two recommended cells: the larger of both."""
    reader_ratio: tables.Median
    busy_latency: tables.Median
    slowdown: tables.Median
    split_ratio: tables.Median
    crossover: float
    fewest_repeats: int
    """Fewest repeats behind any of the medians."""
    fewest_spread: int
    """Fewest runs of a recommended cell."""


def measure(runs: pl.DataFrame, passes: pl.DataFrame, choices: Choices) -> Measures:
    """The figures behind the verdict."""
    expert = _cell(choices.expert.reader, RECORD, choices.expert.depth)
    ple = _cell(choices.ple.reader, PAGE, choices.ple.depth)
    page = _cell(choices.ple.reader, PAGE, 1)
    refined, beside, halves = (runs.filter(phase=name) for name in ("refine", "beside", "split"))
    cold = pl.concat([runs.filter(cache="cold")["cached_before"], passes["cached_before"]])
    repeats = [tables.select(runs, **cell)["bandwidth_gbps"].to_list() for cell in (expert, ple)]
    reader = tables.ratio_of(refined, expert, _cell(BUFFERED, RECORD, choices.control.depth), "useful_gbps")
    busy = tables.ratio_of(beside, {**page, "beside": "python"}, page, "submit_to_seen_p50_us")
    split = tables.ratio_of(halves, {"size": SPLIT}, {"size": RECORD}, "useful_gbps")
    slowdown = tables.slowdown_of(beside, {**expert, "beside": "mlx"})
    return Measures(
        cold_share=int((cold == 0).sum()) / len(cold),
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
    """The registered clauses with their figures; without `quiet`, clauses on times decide nothing."""
    spread = found.spread if found.fewest_spread >= config.min_spread_runs else math.nan
    clauses: list[tuple[str, str, tables.Median, str, float]] = [
        (
            "A.repeatable",
            f"spread of the recommended cells over at least {config.min_spread_runs} runs each",
            tables.Median(value=found.spread, low=spread, high=spread, count=found.fewest_spread),
            "<=",
            config.max_spread,
        ),
        (
            "A.reader",
            "record bandwidth, recommended reader / buffered reader, cold",
            found.reader_ratio,
            ">=",
            config.min_reader_ratio,
        ),
        (
            "A.interpreter",
            "time until a page is seen, beside busy Python / alone",
            found.busy_latency,
            "<=",
            config.max_busy_latency,
        ),
        ("A.interference", "time of a step of MLX, while records are read / alone", found.slowdown, "<=", config.max_slowdown),
    ]
    cold = tables.Median(value=found.cold_share, low=found.cold_share, high=found.cold_share, count=found.fewest_spread)
    words = "share of cold runs whose part of the file mincore saw out of memory before the first read"
    timed = [
        clause(code, text, median if quiet else _undecided(median), relation, threshold)
        for code, text, median, relation, threshold in clauses
    ]
    return (clause("A.cold", words, cold, ">=", 1.0), *timed)


def _undecided(found: tables.Median) -> tables.Median:
    """The median without its interval."""
    return replace(found, low=math.nan, high=math.nan)


def is_quiet(config: StorageConfig, watch: WatchRecord) -> bool:
    """True when other processes took no more than the allowed share of the cores and nothing was swapped out."""
    allowed = config.max_other_share * machine().num_cores
    return watch.other_cores + watch.stolen_cores <= allowed and watch.swap_out_bytes <= 0


def limits_of(found: Measures, config: StorageConfig, watch: WatchRecord, cut: Sequence[str]) -> dict[str, str]:
    """By clause code, why this run can't give a full pass."""
    limits, wanted = {}, StorageConfig().close_rounds
    if config.smoke or found.fewest_repeats < wanted:
        limits["A.sample"] = (
            f"{'smoke run: ' if config.smoke else ''}a full verdict needs {wanted} repeats of each measurement that decides, "
            f"this run has {found.fewest_repeats}" + (f" (out of time in {', '.join(cut)})" if cut else "")
        )
    if not is_quiet(config, watch):
        limits["A.quiet"] = (
            f"not alone on the machine: other processes took {watch.other_cores:.2f} cores, the hypervisor "
            f"{watch.stolen_cores:.2f}, {format_bytes(watch.swap_out_bytes)} were swapped out; allowed are "
            f"{config.max_other_share * machine().num_cores:.2g} cores and no swapping, so times decide nothing"
        )
    return limits


def conditions_of(config: StorageConfig, filesystem: str, missing: Mapping[str, str]) -> list[str]:
    """Conditions of every verdict of this configuration."""
    conditions = [f"a file of {format_bytes(config.file_bytes)} of random bytes on {filesystem}", *machine_conditions()]
    conditions += [f"not measured: {name} ({reason})" for name, reason in missing.items()]
    return conditions + changed_thresholds(config, REGISTERED)
