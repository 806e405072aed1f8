"""Do reads and compute leave each other in peace? Both alone, then both at once, at the disk's own speed: physical."""

import time
from typing import Any

import polars as pl

from workbench.experiments.disk_probe import read_rate, record_windows
from workbench.gates.a_storage.load import running
from workbench.gates.c_overlap.config import OverlapConfig
from workbench.paths import store_folder
from workbench.runtime.config import RuntimeConfig
from workbench.units import GB

RATE_SCHEMA: dict[str, Any] = {
    "round": pl.Int32,
    # steps of an expert's multiplication a second, and bytes of records a second
    "steps_alone_per_s": pl.Float64,
    "steps_beside_per_s": pl.Float64,
    "read_alone_gbps": pl.Float64,
    "read_beside_gbps": pl.Float64,
    "kept": pl.Float64,
}
"""One row a round."""


def measure_rates(config: OverlapConfig) -> pl.DataFrame:
    """Rates alone and together, `overlap_rounds` times; records of the profile's store, as many at once as a run reads."""
    runtime = RuntimeConfig()
    path, windows = record_windows(store_folder(config.profile))

    def read(seed: int) -> float:
        depth, uncached, seconds = runtime.expert_depth, runtime.uncached, config.overlap_seconds
        return read_rate(path, windows, depth=depth, uncached=uncached, probe_s=seconds, seed=seed).bytes_per_s / GB

    rows = []
    for number in range(config.overlap_rounds):
        seed = config.seed + 2 * number
        read_alone = read(seed)
        with running("mlx") as load:
            assert load is not None
            steps_alone = load.rate_for(config.overlap_seconds)
            steps, start_ns = load.steps, time.monotonic_ns()
            read_beside = read(seed + 1)
            steps_beside = load.rate_since(steps, start_ns)
        rates = (steps_alone or 0.0, steps_beside or 0.0, read_alone, read_beside)
        rows.append((number, *rates, kept_overlap(*rates)))
    return pl.DataFrame(rows, schema=RATE_SCHEMA, orient="row")


def kept_overlap(steps_alone: float, steps_beside: float, read_alone: float, read_beside: float) -> float:
    """1: neither slows the other. 0: what one gains the other loses, so that doing one after the other takes as long."""
    return steps_beside / steps_alone + read_beside / read_alone - 1 if steps_alone else 0.0
