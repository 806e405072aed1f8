"""Rates of reads and compute, each alone and both at once, at the disk's own speed: physical."""

import time
from typing import Any

import polars as pl

from workbench.experiments.disk_probe import read_rate, record_windows
from workbench.gates.shared.load import running
from workbench.paths import store_folder
from workbench.runtime.config import RuntimeConfig
from workbench.units import GB

RATE_SCHEMA: dict[str, Any] = {
    "round": pl.Int32,
    # products with an expert's matrix per second, and bytes of records per second
    "steps_alone_per_s": pl.Float64,
    "steps_beside_per_s": pl.Float64,
    "read_alone_gbps": pl.Float64,
    "read_beside_gbps": pl.Float64,
    "kept": pl.Float64,
}
"""Columns of the table of rates: one row per round."""


def measure_rates(profile: str, *, rounds: int, seconds: float, seed: int) -> pl.DataFrame:
    """Rates alone and at once, in `RATE_SCHEMA`; reads are records of the profile's store, at a run's queue depth.

    Args:
        profile: the profile whose store is read.
        rounds: repeats.
        seconds: length of each measurement.
        seed: chooses the records.
    """
    runtime = RuntimeConfig()
    path, windows = record_windows(store_folder(profile))

    def read(seed: int) -> float:
        found = read_rate(path, windows, depth=runtime.expert_depth, uncached=runtime.uncached, probe_s=seconds, seed=seed)
        return found.bytes_per_s / GB

    rows = []
    for number in range(rounds):
        read_alone = read(seed + 2 * number)
        with running("mlx") as load:
            assert load is not None
            steps_alone = load.rate_for(seconds)
            steps, start_ns = load.steps, time.monotonic_ns()
            read_beside = read(seed + 2 * number + 1)
            steps_beside = load.rate_since(steps, start_ns)
        rates = (steps_alone or 0.0, steps_beside or 0.0, read_alone, read_beside)
        rows.append((number, *rates, kept_overlap(*rates)))
    return pl.DataFrame(rows, schema=RATE_SCHEMA, orient="row")


def kept_overlap(steps_alone: float, steps_beside: float, read_alone: float, read_beside: float) -> float:
    """Steps (beside / alone) + reads (beside / alone) - 1. 1: neither slows the other; 0: running both at once gains nothing."""
    return steps_beside / steps_alone + read_beside / read_alone - 1 if steps_alone else 0.0
