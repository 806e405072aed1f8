"""Sweeps of the twin: policy x slots x wave x predictor x envelope, over a pool of processes, with progress and resume.

Each point is one file in the folder's artifacts, named by the digest of its configuration. An interrupted sweep is resumed with
its finished points, and all points are written to one parquet table.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
from pydantic import Field

from workbench.analysis.run_metrics import run_metrics
from workbench.analysis.twin_trust import Trust, trust
from workbench.analysis.workers import completed
from workbench.config import Config
from workbench.experiments.simulation import RoutesConfig, TwinRunConfig, load_routes, run_twin
from workbench.files import read_json_object, with_numbers
from workbench.paths import runs_folder
from workbench.plugins import short_name
from workbench.policies import PolicyName
from workbench.prediction import PredictorName, PredictorSettings
from workbench.progress import progress
from workbench.scheduling.ticket import WaveSize
from workbench.schema import EventLog, Evidence, RunFolder, Status, list_runs
from workbench.schema.envelopes import load_envelope
from workbench.schema.parquet import write_parquet
from workbench.schema.results import write_json
from workbench.simulate.twin import Slots, TwinConfig

TABLE_NAME = "sweep.parquet"
_SHOWN = {
    "tokens_per_s": "e2e/decode_tps",
    "misses_per_token": "routing/misses_per_token",
    "exposed_wait_ms": "overlap/exposed_wait_ms",
    "demand_bytes_per_token": "e2e/demand_bytes_per_token",
    "wasted_bytes_per_token": "e2e/wasted_bytes_per_token",
    "hit_rate": "routing/decode_hit_rate",
}


class SweepConfig(Config):
    """A grid; every combination is one run of the twin on the same routes."""

    routes: RoutesConfig = RoutesConfig(requests=1, tokens=100)
    """Routes to replay."""
    policies: tuple[PolicyName, ...] = ("lru", "lfru")
    """Eviction policies."""
    num_slots: tuple[Slots, ...] = (4008, 10_200)
    """Cache sizes in records."""
    waves: tuple[WaveSize, ...] = ("barrier", 4)
    """Fewest missing experts that are computed together; barrier: all, after the last read."""
    predictors: tuple[PredictorName, ...] = ("nothing", "oracle")
    """Predictors of expert reads."""
    predictor_settings: PredictorSettings = PredictorSettings()
    """Settings of all predictors."""
    envelopes: tuple[str, ...] = ("m5-pro-2tb",)
    """Disks: names of files in data/envelopes, or paths."""
    stages: str = ""
    """Stage times: a result folder of a run with attribution, or a JSON file; default: `token_ms` spread evenly over layers."""
    token_ms: float = Field(40.0, gt=0)
    """Compute time per token when `stages` is empty, milliseconds."""
    workers: int = Field(2, ge=1)
    """Number of processes."""

    def points(self) -> Iterator[TwinRunConfig]:
        """The configuration of every combination."""
        grid = itertools.product(self.envelopes, self.num_slots, self.policies, self.waves, self.predictors)
        for envelope, num_slots, policy, wave, predictor in grid:
            twin = TwinConfig(
                num_slots=num_slots,
                policy=policy,
                wave=wave,
                predictor=predictor,
                predictor_settings=self.predictor_settings,
            )
            yield TwinRunConfig(routes=self.routes, twin=twin, envelope=envelope, stages=self.stages, token_ms=self.token_ms)


def run_sweep(config: SweepConfig, root: Path | None = None) -> RunFolder:
    """Runs the grid and writes `artifacts/sweep.parquet`. Resumes an unfinished sweep of the same configuration."""
    root = root or runs_folder()
    for envelope in config.envelopes:
        load_envelope(envelope)
    routes = load_routes(config.routes)
    earlier = _unfinished(config, root)
    folder = RunFolder.create(
        root, "simulate", config, profile=routes.profile, evidence=Evidence.SIMULATED, tags={"arm": "sweep"}
    )
    with folder:
        points = list(config.points())
        trusted = trust(root, routes.profile)
        found = _run_points(points, config.workers, folder.artifacts / "points", earlier)
        rows = [row | _speeds(trusted, row["tokens_per_s"]) for row in found]
        write_parquet(pl.DataFrame(rows), folder.artifacts / TABLE_NAME)
        folder.finish(tables={"sweep": rows}, tags={"routes": config.routes.source, "twin": trusted.statement})
    return folder


def _speeds(trusted: Trust, tokens_per_s: float | None) -> dict[str, float | None]:
    low, high = trusted.speeds(tokens_per_s) if tokens_per_s else (None, None)
    return {"tokens_per_s_low": low, "tokens_per_s_high": high}


def _unfinished(config: SweepConfig, root: Path) -> Path | None:
    """Folder of the points of the latest unfinished sweep of this configuration; None: there is none."""
    runs = [run for run in list_runs(root, "simulate") if run.environment["config_digest"] == config.digest]
    folders = [run.artifacts / "points" for run in runs if run.status not in (Status.FINISHED, Status.RUNNING)]
    return next((folder for folder in reversed(folders) if folder.is_dir()), None)


def _run_points(points: list[TwinRunConfig], workers: int, folder: Path, earlier: Path | None) -> list[dict[str, Any]]:
    folder.mkdir()
    for point in points:
        if earlier is not None and (done := earlier / _file_name(point)).exists():
            write_json(folder / _file_name(point), _row(done))
    missing = [point for point in points if not (folder / _file_name(point)).exists()]
    with progress("sweep", len(missing)) as advance:
        for index, row in completed(run_point, [(point,) for point in missing], workers):
            write_json(folder / _file_name(missing[index]), row)
            advance(1)
    return [_row(folder / _file_name(point)) for point in points]


def _row(path: Path) -> dict[str, Any]:
    """A finished point's row."""
    row: dict[str, Any] = with_numbers(read_json_object(path, strict=False))
    return row


def run_point(point: TwinRunConfig) -> dict[str, Any]:
    """One row of a sweep's table."""
    log = EventLog()
    run_twin(point, load_routes(point.routes), log)
    metrics = run_metrics(log.frame())
    settings = {
        "envelope": point.envelope,
        "num_slots": point.twin.num_slots,
        "policy": short_name(point.twin.policy),
        "wave": str(point.twin.wave),
        "predictor": point.twin.predictor_label,
    }
    return settings | {name: metrics.get(metric) for name, metric in _SHOWN.items()}


def _file_name(point: TwinRunConfig) -> str:
    return f"{point.digest[:16]}.json"
