"""Tables, figures and metrics of a Gate A run."""

from collections.abc import Mapping
from typing import Any

import polars as pl

from workbench.abba.records import WatchRecord
from workbench.analysis import storage as tables
from workbench.gates.a_storage.cells import PAGE, RECORD, SIZES, SLOW_SWITCH, SPLIT
from workbench.gates.a_storage.walk import Choices
from workbench.schema.envelopes import Envelope


def made_tables(runs: pl.DataFrame, passes: pl.DataFrame, envelope: Envelope) -> dict[str, pl.DataFrame]:
    """Every table of a run, by name."""
    cells = tables.cell_table(runs)
    return {
        "cells": cells,
        "recommended": _recommended(envelope),
        "envelope": pl.DataFrame([envelope.model_dump(include={"latency_us", "stream_gbps", "bandwidth_gbps", "iops"})]),
        "readers": _readers(cells),
        "beside": tables.beside_table(runs.filter(phase="beside")),
        "split": _split(runs.filter(phase="split")),
        "crossover": tables.crossover_table(passes),
        "drift": tables.drift_table(runs),
    }


def _recommended(envelope: Envelope) -> pl.DataFrame:
    measured = envelope.measured
    assert measured is not None
    return pl.DataFrame([{"class": name, **getattr(measured, name).model_dump()} for name in ("expert", "ple")])


def _readers(cells: pl.DataFrame) -> pl.DataFrame:
    """One row a size and reader, at the depth of its highest bandwidth."""
    cold = cells.filter(cache="cold", beside="idle").filter(pl.col("size") != SPLIT, pl.col("reader") != SLOW_SWITCH)
    best = cold.sort("bandwidth_gbps", descending=True).unique(["size", "reader"], keep="first", maintain_order=True)
    order = [name for name in SIZES if name in cold["size"]]
    shown = best.select(
        "size", "reader", "depth", "bandwidth_gbps", "reads_per_s", "p50_us", "p99_us", "cpu_us_per_read", "spread"
    )
    return shown.sort(pl.col("size").replace_strict({name: i for i, name in enumerate(order)}), "reader")


def _split(runs: pl.DataFrame) -> pl.DataFrame:
    cells = tables.cell_table(runs).select(
        "size", "reader", "depth", "runs", "useful_gbps", "p50_us", "p99_us", "cpu_us_per_read"
    )
    ratio = tables.ratio_of(runs, {"size": SPLIT}, {"size": RECORD}, "useful_gbps")
    whole = pl.col("size") == RECORD
    ends = {"over_whole": ratio.value, "over_whole_low": ratio.low, "over_whole_high": ratio.high}
    return cells.sort("depth").with_columns(**{name: pl.when(whole).then(1.0).otherwise(value) for name, value in ends.items()})


def shown_tables(made: Mapping[str, pl.DataFrame], watch: WatchRecord) -> dict[str, list[dict[str, Any]]]:
    """Tables small enough for people, and one of other processes' load on the machine."""
    shown = {name: table.to_dicts() for name, table in made.items() if name != "cells"}
    others = watch.model_dump(include={"wall_s", "other_cores", "stolen_cores", "swap_out_bytes", "memory_pressure"})
    return {**shown, "machine": [others]}


def metrics_of(runs: pl.DataFrame, choices: Choices, slowdown: float) -> dict[str, float]:
    """Metrics of the recommended cells, by names of the registry."""
    found = {"overlap/compute_slowdown": slowdown}
    for owner, choice, size in (("expert", choices.expert, RECORD), ("ple", choices.ple, PAGE)):
        chosen = tables.select(runs, reader=choice.reader, depth=choice.depth, size=size, cache="cold", beside="idle")
        columns = {
            "bandwidth_gbps": "bandwidth_gbps",
            "submit_to_ready_p50_us": "p50_us",
            "submit_to_ready_p95_us": "p95_us",
            "submit_to_ready_p99_us": "p99_us",
            "ready_to_seen_p50_us": "ready_to_seen_p50_us",
        }
        middle = chosen.select(pl.col(*columns.values()).median()).row(0, named=True)
        found |= {f"storage/{owner}_{name}": middle[column] for name, column in columns.items()}
    return found


def made_figures(made: Mapping[str, pl.DataFrame], source: str) -> dict[str, Any]:
    """Every figure of the tables `made`, by name; `source` stands in the figure's corner."""
    # matplotlib takes a while to import: only a run that draws pays for it
    from workbench.plots import storage as plots

    cold = made["cells"].filter(cache="cold", beside="idle").filter(pl.col("size") != SPLIT)
    return {
        "bandwidth": plots.heat_figure(cold, source),
        "records": plots.depth_figure(cold.filter(size=RECORD), "bandwidth_gbps", "Reading records, cold", "GB/s", source),
        "pages": plots.depth_figure(cold.filter(size=PAGE), "reads_per_s", "Reading pages of 4 KiB, cold", "reads/s", source),
        "latency": plots.latency_figure(cold.filter(size=PAGE), source),
        "beside": plots.beside_figure(made["beside"], source),
        "crossover": plots.crossover_figure(made["crossover"], source),
        "drift": plots.drift_figure(made["drift"], source),
    }
