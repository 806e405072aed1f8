"""Tables of Gate A from its runs: medians with intervals, spread, drift, choice of reader and depth, ratios, the crossover.

A run is one measurement of one cell; rounds interleave the cells, so runs of one round are compared with each other.
Intervals are those of a median by order statistics: they assume no distribution, and fewer than six repeats have none.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

CELL = ("reader", "size", "depth", "cache", "beside")
"""Columns that name a cell."""
MEASURES = (
    "bandwidth_gbps", "useful_gbps", "reads_per_s", "p50_us", "p95_us", "p99_us", "ready_to_seen_p50_us",
    "submit_to_seen_p50_us", "cpu_us_per_read", "load_alone_per_s", "load_beside_per_s",
)  # fmt: skip
"""Columns that hold a measurement; null where it doesn't apply."""
RUN_SCHEMA: dict[str, Any] = {
    "phase": pl.String,
    "round": pl.Int32,
    "reader": pl.String,
    "size": pl.String,
    "depth": pl.Int32,
    "cache": pl.String,
    "beside": pl.String,
    "cached_before": pl.Float64,
    "start_ns": pl.Int64,
    "seconds": pl.Float64,
    "reads": pl.Int64,
    "logical_bytes": pl.Int64,
    "physical_bytes": pl.Int64,
    **dict.fromkeys(MEASURES, pl.Float64),
}
"""Columns of a table of runs."""
_CONFIDENCE = 0.95
_NEVER = 1.25
"""Shown as the crossover of a disk on which sequential reading never wins."""


@dataclass(frozen=True, kw_only=True)
class Median:
    """Median of repeats with its 95 % interval; NaN ends: too few repeats for one."""

    value: float
    low: float
    high: float
    count: int


def median_of(values: Sequence[float]) -> Median:
    """The median and the narrowest pair of order statistics that covers it in 95 % of samples."""
    ordered = sorted(values)
    count = len(ordered)
    if not count:
        return Median(value=math.nan, low=math.nan, high=math.nan, count=0)
    middle = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    outside = _ranks_outside(count)
    low, high = (ordered[outside], ordered[-1 - outside]) if outside is not None else (math.nan, math.nan)
    return Median(value=middle, low=low, high=high, count=count)


def _ranks_outside(count: int) -> int | None:
    """Number of repeats outside the interval at each end; None: too few repeats for an interval."""
    below, outside = 0.0, None
    for rank in range(count // 2 + 1):
        below += math.comb(count, rank) / 2**count
        if 2 * below > 1 - _CONFIDENCE:
            break
        outside = rank
    return outside


def spread_of(values: Sequence[float]) -> float:
    """Half the distance from the 10th to the 90th percentile, divided by the median; NaN for fewer than two values."""
    if len(values) < 2:
        return math.nan
    series = pl.Series(values)
    low, middle, high = (series.quantile(share, "linear") or 0.0 for share in (0.1, 0.5, 0.9))
    return (high - low) / 2 / middle


def select(runs: pl.DataFrame, **cell: Any) -> pl.DataFrame:
    """Runs of the cells that have these values."""
    return runs.filter(*(pl.col(name) == value for name, value in cell.items()))


def cell_table(runs: pl.DataFrame) -> pl.DataFrame:
    """One row per cell: number of its runs, medians over them, and the spread of its bandwidth."""
    rows = []
    for _, group in runs.group_by(CELL, maintain_order=True):
        first = {name: group[name][0] for name in CELL}
        bandwidth = group["bandwidth_gbps"].to_list()
        medians = {name: group[name].median() for name in MEASURES}
        ends = {"bandwidth_low_gbps": min(bandwidth), "bandwidth_high_gbps": max(bandwidth), "spread": spread_of(bandwidth)}
        per_read = int(group["physical_bytes"].sum()) / int(group["reads"].sum())
        rows.append(
            {
                **first,
                "runs": len(group),
                "physical_bytes_per_read": per_read,
                **medians,
                **ends,
                "cached_before": group["cached_before"].max(),
            }
        )
    return pl.DataFrame(rows, infer_schema_length=None)


def drift_table(runs: pl.DataFrame) -> pl.DataFrame:
    """One row per phase and round, in time order: bandwidth divided by its cell's median, median over the round's cells."""
    relative = runs.with_columns(relative=pl.col("bandwidth_gbps") / pl.col("bandwidth_gbps").median().over(["phase", *CELL]))
    rounds = relative.group_by("phase", "round").agg(
        start_ns=pl.col("start_ns").min(),
        cells=pl.len(),
        relative=pl.col("relative").median(),
        low=pl.col("relative").quantile(0.1, "linear"),
        high=pl.col("relative").quantile(0.9, "linear"),
    )
    ordered = rounds.sort("start_ns")
    return ordered.select(
        "phase", "round", "cells", "relative", "low", "high", start_s=(pl.col("start_ns") - pl.col("start_ns").min()) / 1e9
    )


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A reader and a depth (reads in flight)."""

    reader: str
    depth: int


_FACTORS = (["reader", "depth"], ["phase", "round"])


def choose(runs: pl.DataFrame, readers: Sequence[str], measure: str, near_best: float, standing: Choice | None = None) -> Choice:
    """The earlier choice if its rate is near the best; else the first reader with such a rate, at its smallest such depth.

    The best rate is the median over all cells near the highest one, since the highest cell is partly highest by luck.

    Args:
        runs: runs of one size, cold, without a load beside them.
        readers: names of readers in order of preference.
        measure: column to maximise.
        near_best: share of the best rate from which a cell is as good as the best.
        standing: the earlier choice; without it, noise would choose anew among equally good cells each time.
    """
    rates = cell_rates(runs.filter(pl.col("reader").is_in(list(readers))), measure)
    highest = rates.filter(pl.col("rate") >= near_best * pl.col("rate").max())["rate"].to_numpy()
    good = rates.filter(pl.col("rate") >= near_best * float(np.median(highest)))
    if standing and not good.filter(reader=standing.reader, depth=standing.depth).is_empty():
        return standing
    reader = next(name for name in readers if name in good["reader"])
    return Choice(reader=reader, depth=int(good.filter(reader=reader)["depth"].to_numpy().min()))


def best_depth(runs: pl.DataFrame, reader: str, measure: str) -> int:
    """Depth with the reader's highest rate of `measure`; the smallest on a tie."""
    rates = cell_rates(runs.filter(reader=reader), measure)
    return int(rates.sort("rate", "depth", descending=[True, False])["depth"][0])


_SWEEPS = 50
_LEAST_ERROR = 1e-6
"""Smallest error of a logarithm in the weights of the fit; avoids dividing by 0."""


def cell_rates(runs: pl.DataFrame, measure: str) -> pl.DataFrame:
    """`rate` by reader and depth, with drift between rounds removed.

    log(rate) is modelled as a cell's effect plus a round's effect, fitted by least absolute errors (reweighted least squares),
    so that up to half of a cell's runs may be slowed down by other programs.
    """
    cells, rounds = (runs.select(pl.struct(names).rank("dense")).to_series().to_numpy() - 1 for names in _FACTORS)
    design = np.hstack([np.eye(cells.max() + 1)[cells], np.eye(rounds.max() + 1)[rounds]])
    wanted = np.log(runs[measure].to_numpy())
    weights = np.ones(len(wanted))
    for _ in range(_SWEEPS):
        shares = np.linalg.lstsq(design * weights[:, None], wanted * weights, rcond=None)[0]
        weights = np.maximum(np.abs(wanted - design @ shares), _LEAST_ERROR) ** -0.5
    middle = np.median(shares[cells.max() + 1 :])
    rate = np.exp(shares[cells] + middle)
    return runs.select("reader", "depth", rate=pl.Series(rate)).unique(["reader", "depth"], keep="first", maintain_order=True)


def ratio_of(runs: pl.DataFrame, above: Mapping[str, Any], below: Mapping[str, Any], measure: str) -> Median:
    """Median over rounds of (measure of cell `above`) / (measure of cell `below`), paired by phase and round."""
    tops, bottoms = (select(runs, **cell).select("phase", "round", value=measure) for cell in (above, below))
    pairs = tops.join(bottoms, on=["phase", "round"], suffix="_below").drop_nulls()
    return median_of((pairs["value"] / pairs["value_below"]).to_list())


def slowdown_of(runs: pl.DataFrame, cell: Mapping[str, Any]) -> Median:
    """Median slowdown of the load: its rate alone, measured just before, divided by its rate while reads run."""
    chosen = select(runs, **cell).drop_nulls(["load_alone_per_s", "load_beside_per_s"])
    return median_of((chosen["load_alone_per_s"] / chosen["load_beside_per_s"]).to_list())


def beside_table(runs: pl.DataFrame) -> pl.DataFrame:
    """One row per reader, size, depth and load: latency and bandwidth divided by the idle case's, slowdown of the load."""
    rows = []
    for keys in runs.select(CELL).unique().sort(CELL).iter_rows(named=True):
        idle = {**keys, "beside": "idle"}
        if keys["beside"] == "idle":
            continue
        slower = slowdown_of(runs, keys)
        latency = ratio_of(runs, keys, idle, "submit_to_seen_p50_us")
        rows.append(
            {
                **keys,
                "seen_p50_us": select(runs, **keys)["submit_to_seen_p50_us"].median(),
                "p50_over_idle": latency.value,
                "p50_over_idle_low": latency.low,
                "p50_over_idle_high": latency.high,
                "bandwidth_over_idle": ratio_of(runs, keys, idle, "bandwidth_gbps").value,
                "load_slowdown": slower.value,
                "load_slowdown_low": slower.low,
                "load_slowdown_high": slower.high,
            }
        )
    return pl.DataFrame(rows, infer_schema_length=None)


def crossover_table(passes: pl.DataFrame) -> pl.DataFrame:
    """One row per share of a layer's records: median seconds for separate reads of them, and for the layer as one extent."""
    whole = passes.filter(how="sequential").select("round", sequential_s="seconds")
    paired = passes.filter(how="sparse").join(whole, on="round")
    grouped = paired.group_by("share", maintain_order=True).agg(
        records=pl.col("records").first(),
        sparse_s=pl.col("seconds").median(),
        sequential_s=pl.col("sequential_s").median(),
        ratio=(pl.col("seconds") / pl.col("sequential_s")).median(),
        ratio_low=(pl.col("seconds") / pl.col("sequential_s")).min(),
        ratio_high=(pl.col("seconds") / pl.col("sequential_s")).max(),
    )
    return grouped.sort("share")


def crossover(table: pl.DataFrame) -> float:
    """Share of a layer's records from which reading the layer as one extent is faster, interpolated; above 1: never."""
    earlier_share = earlier_ratio = 0.0
    for share, ratio in table.select("share", "ratio").iter_rows():
        if ratio >= 1:
            return float(earlier_share + (share - earlier_share) * (1 - earlier_ratio) / (ratio - earlier_ratio))
        earlier_share, earlier_ratio = share, ratio
    return _NEVER
