"""Stall per byte: exposed wait per megabyte read, by disk, cache size and wave. Simulated."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import polars as pl
from pydantic import Field

from workbench.analysis.twin_errors import decoded
from workbench.analysis.workers import completed
from workbench.config import Config, Share
from workbench.experiments.simulation import LoadedRoutes, TwinRunConfig, run_twin
from workbench.paths import data_folder
from workbench.scheduling.ticket import WaveSize
from workbench.schema import EventLog
from workbench.simulate.twin import TwinConfig

_POOL_PAYS = 20_000
"""Number of layer events, over all points, above which a pool of processes is faster."""
_BYTES_PER_MB = 1_000_000


class StallConfig(Config):
    """Settings of the simulated runs."""

    requests: int = Field(4, ge=1)
    """First requests of the trace that are replayed."""
    fractions: tuple[Share, ...] = (0.1, 0.25, 0.5)
    """Slots as shares of all records."""
    waves: tuple[WaveSize, ...] = ("barrier", 4)
    """Fewest missing experts that are computed together; barrier: all, after the last read."""
    layer_ms: float = Field(0.5, gt=0)
    """Assumed compute time per token and layer, milliseconds."""


def stall_table(
    routes: LoadedRoutes, config: StallConfig, *, record_bytes: int, advance: Callable[[int], None] = lambda _: None
) -> pl.DataFrame:
    """One row per disk of `data/envelopes`, cache size and wave; the policy is LFRU. `record_bytes`: bytes of one record."""
    first = routes.frame["request"].unique().sort()[: config.requests]
    part = replace(routes, frame=routes.frame.filter(pl.col("request").is_in(first.to_list())))
    jobs = [(fraction, point, part) for fraction, point in _points(config, routes, record_bytes)]
    rows: list[dict[str, Any]] = [{}] * len(jobs)
    for index, row in completed(_stall, jobs, workers=None if len(jobs) * part.frame.height > _POOL_PAYS else 1):
        rows[index] = row
        advance(1)
    return pl.DataFrame(rows)


def _points(config: StallConfig, routes: LoadedRoutes, record_bytes: int) -> Iterator[tuple[float, TwinRunConfig]]:
    for envelope in sorted(path.stem for path in (data_folder() / "envelopes").glob("*.json")):
        for fraction in config.fractions:
            num_slots = round(fraction * routes.num_layers * routes.num_experts)
            for wave in config.waves:
                twin = TwinConfig(num_slots=num_slots, record_bytes=record_bytes, wave=wave)
                yield fraction, TwinRunConfig(twin=twin, envelope=envelope, token_ms=config.layer_ms * routes.num_layers)


def _stall(fraction: float, point: TwinRunConfig, routes: LoadedRoutes) -> dict[str, Any]:
    log = EventLog()
    run_twin(point, routes, log)
    run = decoded(log.frame())
    read_mb = run.misses * point.twin.record_bytes / _BYTES_PER_MB
    return {
        "envelope": point.envelope,
        "fraction": fraction,
        "wave": str(point.twin.wave),
        "read_mb_per_token": read_mb,
        "stall_ms_per_token": run.exposed_wait_ms,
        "stall_ms_per_mb": run.exposed_wait_ms / read_mb if read_mb else None,
    }
