"""Simulations on recorded, synthetic or planted routes: misses of policies, and runs of the twin."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from pydantic import Field

from workbench.analysis.bootstrap import Resampler
from workbench.analysis.classes import read_tables
from workbench.analysis.run_metrics import run_metrics, token_series
from workbench.analysis.twin_errors import decoded
from workbench.analysis.twin_trust import estimates, trust
from workbench.analysis.workers import POOL_PAYS, completed
from workbench.config import Config, Seed, Share
from workbench.errors import BadInput
from workbench.paths import runs_folder
from workbench.policies import PolicyName
from workbench.progress import progress
from workbench.schema import EventLog, Evidence, RunFolder, read_events, read_routes
from workbench.schema.envelopes import load_envelope
from workbench.schema.parquet import write_parquet
from workbench.schema.routes import MAX_EXPERTS, MAX_LAYERS
from workbench.simulate import planted
from workbench.simulate.events import route_events, route_frame
from workbench.simulate.passes import in_turns, passes
from workbench.simulate.replay import miss_counts, of_layers
from workbench.simulate.stages import StageTimes
from workbench.simulate.synthetic import RouteModel, synthetic_routes
from workbench.simulate.twin import Twin, TwinConfig

PREFILL_TILE = 256
_MOST_SCORES = 1 << 29
"""Most scores of experts that are drawn for synthetic routes: so many take 6 GiB."""


class RoutesConfig(Config):
    """The routes to replay."""

    source: str = "flash-next-like"
    """A route trace (parquet), or flash-next-like, independent, repeated, loop or scan."""
    requests: int = Field(3, ge=1)
    """Synthetic requests, run one after another in one cache."""
    tokens: int = Field(383, ge=1)
    """Decoded tokens per synthetic request."""
    layers: int = Field(48, ge=1, le=MAX_LAYERS)
    """Layers of synthetic routes."""
    experts: int = Field(512, ge=1, le=MAX_EXPERTS)
    """Experts per layer of synthetic routes."""
    top_k: int = Field(10, ge=1)
    """Experts per token and layer of synthetic routes."""
    period: int = Field(20, ge=1)
    """Tokens of a loop's cycle."""
    hot: int = Field(20, ge=1)
    """Hot experts of a scan."""
    seed: Seed = 0
    """Seed of synthetic routes."""


@dataclass(frozen=True, kw_only=True)
class LoadedRoutes:
    """A route trace with its geometry."""

    frame: pl.DataFrame
    num_layers: int
    num_experts: int
    profile: str
    """mini, slice or flash-next, by geometry."""


def load_routes(config: RoutesConfig) -> LoadedRoutes:
    """Reads a route trace or generates routes. Raises BadInput on a source that is neither a trace nor a generator's name."""
    if config.source.endswith(".parquet"):
        frame, geometry = read_routes(Path(config.source))
        return _loaded(frame, geometry["num_layers"], geometry["num_experts"])
    _check_size(config)
    size = {"num_requests": config.requests, "num_tokens": config.tokens}
    shape = {**size, "num_layers": config.layers, "num_experts": config.experts, "top_k": config.top_k}
    early = min(8, config.layers // 6)
    model = RouteModel(num_layers=config.layers, num_experts=config.experts, top_k=config.top_k, num_early_layers=early)
    makers: dict[str, Callable[[], np.ndarray]] = {
        "flash-next-like": lambda: synthetic_routes(model, **size, seed=config.seed),
        "independent": lambda: planted.independent(**shape, seed=config.seed),
        "repeated": lambda: planted.repeated(**shape, seed=config.seed),
        "loop": lambda: planted.loop(**shape, period=config.period),
        "scan": lambda: planted.scan(**shape, num_hot=config.hot),
    }
    if config.source not in makers:
        raise BadInput(f"routes {config.source!r} are neither a .parquet trace nor one of {', '.join(makers)}")
    return _loaded(route_frame(makers[config.source](), family=config.source), config.layers, config.experts)


def _check_size(config: RoutesConfig) -> None:
    size = config.requests * config.tokens * config.layers * config.experts
    if size > _MOST_SCORES:
        raise BadInput(f"requests x tokens x layers x experts of synthetic routes: {size:,}, at most {_MOST_SCORES:,}")


def _loaded(frame: pl.DataFrame, num_layers: int, num_experts: int) -> LoadedRoutes:
    if not frame.height:
        raise BadInput("the trace is empty")
    profile = "mini" if (num_layers, num_experts) == (8, 128) else "slice" if num_layers < 48 else "flash-next"
    return LoadedRoutes(frame=frame, num_layers=num_layers, num_experts=num_experts, profile=profile)


class MissesConfig(Config):
    """The caches to replay routes through."""

    routes: RoutesConfig = RoutesConfig()
    """Routes to replay."""
    policies: tuple[PolicyName, ...] = ("lru", "lfru", "arc", "s3-fifo", "score", "layer-quota", "belady")
    """Policies by name."""
    fractions: tuple[Share, ...] = (0.163, 0.258, 0.326, 0.415, 0.488)
    """Slots as shares of all records."""
    resamples: int = Field(2000, ge=1, le=1_000_000)
    """Bootstrap resamples of the requests."""


def simulate_misses(config: MissesConfig, root: Path | None = None) -> RunFolder:
    """Replays routes through every policy and capacity; the folder's table `misses` has 95 % intervals by request.

    All requests share one cache, which starts empty. Misses of decoded tokens are counted, those of prompt tokens are not.
    """
    routes = load_routes(config.routes)
    folder = RunFolder.create(
        root or runs_folder(), "simulate", config, profile=routes.profile, evidence=Evidence.SIMULATED, tags={"arm": "misses"}
    )
    with folder:
        rows = misses_table(routes, config)
        write_parquet(pl.DataFrame(rows), folder.artifacts / "misses.parquet")
        folder.finish(tables={"misses": rows}, tags={"routes": config.routes.source})
    return folder


def misses_table(routes: LoadedRoutes, config: MissesConfig) -> list[dict[str, Any]]:
    """Misses per decoded token by policy and capacity, with the ratio to Belady's misses if Belady was replayed."""
    ordered = routes.frame.sort("request", "position", "layer")
    events = route_events(ordered, routes.num_experts)
    decoded = (ordered["phase"] == "decode").to_numpy()
    request = np.unique(ordered["request"].to_numpy(), return_inverse=True)[1]
    num_requests = int(request.max()) + 1
    tokens = np.bincount(request[decoded], minlength=num_requests) / routes.num_layers
    resampler = Resampler(num_requests, config.resamples)
    points = [(fraction, policy) for fraction in config.fractions for policy in config.policies]
    rows = []
    for (fraction, policy), missed in zip(points, _replays(routes, events, points), strict=True):
        counted = np.bincount(request, weights=np.where(decoded, missed, 0), minlength=num_requests)
        rate = resampler.ratio(counted, tokens)
        rows.append(
            {
                "policy": policy,
                "num_slots": _num_slots(routes, fraction),
                "share_of_records": fraction,
                "misses_per_token": float(rate.value),
                "misses_per_token_low": float(rate.low),
                "misses_per_token_high": float(rate.high),
                "hit_rate": 1 - float(rate.value) / (routes.num_layers * events.shape[1]),
            }
        )
    return _beside_belady(rows)


def _num_slots(routes: LoadedRoutes, fraction: float) -> int:
    return round(fraction * routes.num_layers * routes.num_experts)


def _replays(routes: LoadedRoutes, events: np.ndarray, points: Sequence[tuple[float, str]]) -> list[np.ndarray]:
    """Misses of each event, one array per point (slots as a share of all records, policy)."""
    jobs = [
        (events, _num_slots(routes, fraction), of_layers(policy, num_experts=routes.num_experts)) for fraction, policy in points
    ]
    found: dict[int, np.ndarray] = {}
    with progress("replay", len(jobs)) as advance:
        for index, missed in completed(miss_counts, jobs, workers=None if len(jobs) * events.size > POOL_PAYS else 1):
            found[index] = missed
            advance(1)
    return [found[index] for index in range(len(jobs))]


def _beside_belady(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    best = {row["num_slots"]: row["misses_per_token"] for row in rows if row["policy"] == "belady"}

    def times_best(row: dict[str, Any]) -> float | None:
        return row["misses_per_token"] / best[row["num_slots"]] if best.get(row["num_slots"]) else None

    return [row | {"times_belady": times_best(row)} for row in rows]


class TwinRunConfig(Config):
    """One run of the twin."""

    routes: RoutesConfig = RoutesConfig(requests=1, tokens=200)
    """Routes to replay."""
    twin: TwinConfig = TwinConfig(num_slots=4008)
    """Settings of the twin; `num_experts` is replaced by that of the routes."""
    turns: int = Field(1, ge=1)
    """Parts into which each request is cut; the requests run alternately, part by part."""
    envelope: str = "m5-pro-2tb"
    """Disk: name of a file in data/envelopes, or a path."""
    stages: str = ""
    """Stage times: a result folder of a run with attribution, or a JSON file; default: `token_ms` spread evenly over layers."""
    token_ms: float = Field(40.0, gt=0)
    """Compute time per token when `stages` is empty, milliseconds."""


def run_twin(config: TwinRunConfig, routes: LoadedRoutes, log: EventLog) -> None:
    """Runs the twin on loaded routes and logs its events to `log`."""
    settings = config.twin.model_copy(update={"num_experts": routes.num_experts})
    twin = Twin(settings, load_stages(config, routes.num_layers), load_envelope(config.envelope), log)
    twin.run(in_turns(list(passes(routes.frame, routes.num_experts, tile=PREFILL_TILE)), config.turns))


def simulate_twin(config: TwinRunConfig, root: Path | None = None) -> RunFolder:
    """Runs the twin and writes a result folder like a live run's, labelled simulated."""
    load_envelope(config.envelope)
    routes = load_routes(config.routes)
    load_stages(config, routes.num_layers)
    tags = {"arm": config.twin.predictor_label, "envelope": config.envelope, "routes": config.routes.source}
    folder = RunFolder.create(
        root or runs_folder(), "simulate", config, profile=routes.profile, evidence=Evidence.SIMULATED, tags=tags
    )
    with folder:
        run_twin(config, routes, folder.events)
        frame = folder.events.frame()
        trusted = trust(root or runs_folder(), routes.profile)
        tables = {"estimates": estimates(decoded(frame), trusted)} | read_tables(frame)
        folder.finish(metrics=run_metrics(frame), per_token=token_series(frame), tables=tables, tags={"twin": trusted.statement})
    return folder


def load_stages(config: TwinRunConfig, num_layers: int) -> StageTimes:
    """Stage times of a configuration. Raises BadInput when they can't be read."""
    if not config.stages:
        return StageTimes.uniform(num_layers, config.token_ms)
    path = Path(config.stages)
    if path.is_dir():
        return StageTimes.from_attribution(read_events(path / "events.parquet"), str(path))
    return StageTimes.from_json(path)
