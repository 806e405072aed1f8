"""Gate B: do routes repeat enough, from token to token, for a cache or a block of tokens to save bytes?

Trace only: routes are recorded from the exact target and replayed through cache policies; nothing is predicted and no disk
is timed. Thresholds are pre-registered in `LocalityConfig`. A failure rejects Gate F before anything is trained.
"""

from collections.abc import Mapping
from pathlib import Path

import polars as pl

from workbench.analysis.bootstrap import Interval
from workbench.analysis.routes import Routes, routes_of
from workbench.errors import BadInput
from workbench.experiments.simulation import LoadedRoutes
from workbench.experiments.stalls import stall_table
from workbench.gates.b_locality.config import LocalityConfig
from workbench.gates.b_locality.evidence import made_figures, shown_tables
from workbench.gates.b_locality.measures import Measures, measure
from workbench.gates.b_locality.verdict import conditions_of, criteria_of, limits_of
from workbench.gates.base import Findings, Gate
from workbench.gates.shared.files import save_figures, save_tables
from workbench.gates.traces import profile_geometry
from workbench.geometry import Geometry
from workbench.progress import progress
from workbench.schema import Evidence, RunFolder, read_routes


def _summary(measures: Measures) -> str:
    best = measures.tables["acceptance"].sort("acceptance_needed").row(0, named=True)
    return (
        f"LFRU's misses / its misses on uniform draws: {_range(measures.miss_ratio)}, / on draws by popularity: "
        f"{_range(measures.miss_ratio_popularity)}; distinct experts of 4 tokens / of 4 uniform draws: "
        f"{_range(measures.union_ratio)}; "
        f"blocks of {best['block']} break even at {best['acceptance_needed']:.0%} acceptance."
    )


def _range(estimate: Interval) -> str:
    return f"{float(estimate.value):.2f} ({float(estimate.low):.2f} to {float(estimate.high):.2f})"


def _run(config: LocalityConfig, folder: RunFolder) -> Findings:
    path = config.source.obtain(folder.path.parent.parent)
    frame, shape = read_routes(path)
    geometry = profile_geometry(config.profile)
    _check_geometry(shape, geometry, config.profile, path)
    routes = routes_of(frame, num_experts=shape["num_experts"])
    measures = measure(routes, config, geometry.record_bytes)
    source = f"{config.profile}, {routes.num_requests} requests, {int(routes.decoded_tokens.sum()):,} decoded tokens"
    made = {**measures.tables, "stalls": _stalls(frame, routes, config, geometry.record_bytes)}
    save_tables(made, folder.artifacts)
    figures = made_figures(made, at_fraction=config.at_fraction, max_acceptance=config.max_acceptance, source=source)
    save_figures(figures, folder.artifacts)
    return Findings(
        criteria=criteria_of(measures, config),
        summary=_summary(measures),
        conditions=conditions_of(config),
        limits=limits_of(routes, config),
        enables=("gate F is not rejected",),
        metrics=measures.metrics,
        per_token={"routing/misses_per_token": measures.misses_by_step.tolist()},
        tables=shown_tables(made),
        tags={"requests": str(routes.num_requests), "trace": str(path)},
    )


def _stalls(frame: pl.DataFrame, routes: Routes, config: LocalityConfig, record_bytes: int) -> pl.DataFrame:
    loaded = LoadedRoutes(frame=frame, num_layers=routes.num_layers, num_experts=routes.num_experts, profile=config.profile)
    with progress("stalls") as advance:
        return stall_table(loaded, config.stalls, record_bytes=record_bytes, advance=advance)


def _check_geometry(shape: Mapping[str, int], geometry: Geometry, profile: str, path: Path) -> None:
    found = (shape["num_experts"], shape["top_k"])
    wanted = (geometry.num_experts, geometry.num_experts_per_tok)
    if found != wanted:
        raise BadInput(
            f"{path}: its routes choose {found[1]} of {found[0]} experts, profile {profile} chooses {wanted[1]} of {wanted[0]}: "
            "name its profile with --profile"
        )


GATE = Gate(
    name="b_locality",
    question="Do routes repeat enough for a cache or a block of tokens to save bytes?",
    evidence=Evidence.TRACE,
    config=LocalityConfig,
    smoke_settings={"requests": 6, "tokens": 24, "fractions": (0.1, 0.25, 0.5), "resamples": 500, "stalls": {"requests": 1}},
    module=__name__,
    shown={
        "unions": "Distinct experts per layer in B tokens (trace)",
        "break_even": "U_B / (top-k tau): routed bytes per committed token / plain decode's, below 1 saves bytes (trace)",
        "misses": "Misses per decoded token (simulated)",
    },
    prepare=lambda config: config.source.prepare(),
    inputs=lambda config: config.source.inputs(),
    run=_run,
)
"""Gate B, as the runner knows it."""
