"""Gate B: do routes repeat enough, from token to token, for a cache or a block of tokens to save bytes?

Trace only: routes are recorded from the exact target and replayed through cache policies; nothing is predicted and no disk
is timed. Thresholds are pre-registered in `LocalityConfig`. A failure rejects Gate F before anything is trained.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from pydantic import Field

from workbench.analysis import locality_tables as tables
from workbench.analysis.bootstrap import Estimate, Resampler
from workbench.analysis.draws import drawn_union, popularity_draws, uniform_draws, uniform_usage
from workbench.analysis.locality import LocalitySums, locality_sums
from workbench.analysis.misses import belady_gap, by_step, miss_curve, miss_ratio
from workbench.analysis.routes import Array, Routes, routes_of
from workbench.analysis.slot_value import slot_value_table
from workbench.errors import BadInput
from workbench.experiments.simulation import LoadedRoutes
from workbench.experiments.stalls import StallConfig, stall_table
from workbench.experiments.trace import TraceConfig
from workbench.gates.b_locality_evidence import save_evidence, shown_tables
from workbench.gates.base import Findings, Gate, GateConfig
from workbench.gates.traces import TraceSource, profile_geometry
from workbench.geometry import Geometry
from workbench.progress import progress
from workbench.schema import Criterion, Evidence, RunFolder, read_routes

MEASURED, UNIFORM, POPULARITY = "measured", "uniform draws", "popularity draws"


class LocalityConfig(GateConfig):
    """Settings of Gate B; the thresholds were registered before the first trace was recorded."""

    trace: str = ""
    """A route trace (parquet) to analyse; empty: one is recorded from held-out prompts, or a fresh one reused."""
    requests: int = Field(default=40, ge=1)
    """Requests to record."""
    tokens: int = Field(default=128, ge=6)
    """Tokens to decode in each."""
    fractions: tuple[float, ...] = (0.10, 0.15, 0.20, 0.25, 0.30, 0.40, 0.50, 0.75, 1.0)
    """Cache capacities to replay, as shares of all records."""
    policies: tuple[str, ...] = ("lru", "lfru", "belady")
    """Cache policies to replay; `lfru` and `belady` are always among them."""
    keep_cache: bool = True
    """Whether a request finds what the one before left in the cache, as in one session; false empties it each time."""
    stalls: StallConfig = StallConfig()
    """Simulations of what a token waits for a byte."""
    resamples: int = Field(default=2000, ge=100)
    """Bootstrap resamples of the requests."""
    min_requests: int = 40
    """Held-out requests that a full verdict needs."""
    min_tokens: int = 128
    """Decoded tokens that each of them needs."""
    at_fraction: float = Field(default=0.25, gt=0, le=1)
    """B.locality: capacity, as a share of all records."""
    max_miss_ratio: float = 0.85
    """B.locality: LFRU's misses per token over those of independent draws must be below this."""
    max_union_ratio: float = 0.95
    """B.union: the union of 4 tokens over that of independent draws must not be above this."""
    max_acceptance: float = 0.80
    """B.breakeven: for some block of 2 to 5, the acceptance needed must not be above this."""

    @property
    def source(self) -> TraceSource:
        """The trace that these settings mean."""
        recording = TraceConfig(profile=self.profile, requests=self.requests, tokens=self.tokens)
        seeded = recording.sampling.model_copy(update={"seed": self.seed})
        return TraceSource(file=self.trace, recording=recording.model_copy(update={"sampling": seeded}))

    @property
    def capacities(self) -> tuple[float, ...]:
        """Fractions to replay, the criterion's among them, ascending."""
        return tuple(sorted({*self.fractions, self.at_fraction}))


_REGISTERED = ("min_requests", "min_tokens", "at_fraction", "max_miss_ratio", "max_union_ratio", "max_acceptance")


@dataclass(frozen=True, kw_only=True)
class Measures:
    """What the criteria turn on, and every table beside it."""

    miss_ratio: Estimate
    """LFRU's misses over those of uniform draws at the criterion's capacity."""
    miss_ratio_popularity: Estimate
    """The same over draws by measured popularity: what order in time is worth beyond skew."""
    union_ratio: Estimate
    """U_4 over that of uniform draws."""
    acceptance: Estimate
    """The smallest acceptance needed over the block sizes."""
    tables: Mapping[str, pl.DataFrame]
    """By name: overlap, unions, acceptance, break_even, unique, reuse, reuse_within, skew, misses, belady_gap, slot_value."""
    metrics: Mapping[str, float]
    """Names of the registry."""
    misses_by_step: Array
    """Mean LFRU misses of the first, second, ... decoded token."""


def measure(routes: Routes, config: LocalityConfig, record_bytes: int) -> Measures:
    """Everything that Gate B measures on a trace."""
    resampler = Resampler(routes.num_requests, num_resamples=config.resamples, seed=config.seed)
    sums = locality_sums(routes)
    controls = {UNIFORM: uniform_draws(routes, config.seed), POPULARITY: popularity_draws(routes, config.seed)}
    policies = tuple(dict.fromkeys((*config.policies, "lfru", "belady")))
    traces = [(MEASURED, routes, policies), *((name, control, ("lfru",)) for name, control in controls.items())]
    with progress("replaying caches", (len(policies) + len(controls)) * len(config.capacities)) as advance:
        curve, missed = miss_curve(
            traces, config.capacities, resampler, record_bytes=record_bytes, keep_cache=config.keep_cache, advance=advance
        )
    lfru = {name: missed[name, "lfru", config.at_fraction] for name, *_ in traces}
    ratios = {name: miss_ratio(routes, lfru[MEASURED], controls[name], lfru[name], resampler) for name in controls}
    caches = {
        "misses": curve,
        "belady_gap": belady_gap(routes, missed, resampler),
        "slot_value": slot_value_table(routes, config.at_fraction, resampler),
    }
    made = _tables(routes, sums, resampler) | caches
    return Measures(
        miss_ratio=ratios[UNIFORM],
        miss_ratio_popularity=ratios[POPULARITY],
        union_ratio=_union_ratio(routes, sums, resampler),
        acceptance=tables.least_acceptance_needed(sums, routes.top_k, resampler),
        tables=made,
        metrics=_metrics(made, sums, config.at_fraction),
        misses_by_step=by_step(routes, lfru[MEASURED]),
    )


def _tables(routes: Routes, sums: LocalitySums, resampler: Resampler) -> dict[str, pl.DataFrame]:
    unions = tables.union_table(routes, sums, resampler)
    return {
        "overlap": tables.overlap_table(routes, sums, resampler),
        "unions": unions,
        "acceptance": tables.acceptance_table(sums, routes.top_k, resampler),
        "break_even": tables.break_even_table(unions, routes.top_k),
        "unique": tables.unique_table(routes, sums, resampler),
        "reuse": tables.reuse_table(sums),
        "reuse_within": tables.reuse_within_table(sums, resampler),
        "skew": tables.skew_table(routes, sums, resampler),
    }


def _union_ratio(routes: Routes, sums: LocalitySums, resampler: Resampler) -> Estimate:
    union = tables.mean_union(sums, 4, resampler)
    drawn = drawn_union(uniform_usage(1, routes.num_experts, routes.top_k), 4).item()
    return Estimate(value=union.value / drawn, low=union.low / drawn, high=union.high / drawn)


def _metrics(made: Mapping[str, pl.DataFrame], sums: LocalitySums, at_fraction: float) -> dict[str, float]:
    at = made["misses"].filter(trace=MEASURED, policy="lfru", fraction=at_fraction).row(0, named=True)
    return {
        "routing/prev_token_overlap": made["overlap"]["overlap"].mean(),
        **{f"routing/union_b{row['block']}": row["union"] for row in made["unions"].iter_rows(named=True)},
        "routing/unique_per_layer": made["unique"]["unique"].mean(),
        "routing/reuse_distance_p50": tables.median_reuse_distance(sums),
        "routing/misses_per_token": at["misses_per_token"],
        "routing/decode_hit_rate": at["hit_rate"],
    }


def criteria_of(measures: Measures, config: LocalityConfig) -> tuple[Criterion, ...]:
    """The registered clauses with their figures."""
    share = f"{config.at_fraction:.0%} of the records"
    clauses = (
        (
            "B.locality",
            f"LFRU at {share}: misses over independent draws'",
            measures.miss_ratio,
            "<",
            config.max_miss_ratio,
        ),
        ("B.union", "U_4 over that of independent draws", measures.union_ratio, "<=", config.max_union_ratio),
        ("B.breakeven", "acceptance needed at the best block of 2 to 5", measures.acceptance, "<=", config.max_acceptance),
    )
    return tuple(_criterion(*clause) for clause in clauses)


def _criterion(code: str, statement: str, estimate: Estimate, relation: Any, threshold: float) -> Criterion:
    value, low, high = (float(part) for part in (estimate.value, estimate.low, estimate.high))
    return Criterion(code=code, statement=statement, value=value, low=low, high=high, relation=relation, threshold=threshold)


def limits_of(routes: Routes, config: LocalityConfig) -> dict[str, str]:
    """By clause code, why this trace can't give a full pass."""
    long_enough = routes.decoded_tokens >= config.min_tokens
    num_held_out = sum(split == "held_out" for split in routes.splits)
    limits = {}
    if config.smoke or num_held_out < routes.num_requests or int(long_enough.sum()) < config.min_requests:
        limits["B.sample"] = (
            f"{'smoke run: ' if config.smoke else ''}{routes.num_requests} requests, {num_held_out} of them held out, "
            f"{int(long_enough.sum())} with {config.min_tokens} decoded tokens; a full verdict needs at least "
            f"{config.min_requests} such requests, all held out"
        )
    if config.profile == "slice":
        limits["B.profile"] = "profile slice has random weights: its routes say nothing about locality"
    return limits


def conditions_of(config: LocalityConfig) -> list[str]:
    """What every verdict of this configuration rests on."""
    defaults = LocalityConfig()
    changed = [name for name in _REGISTERED if getattr(config, name) != getattr(defaults, name)]
    conditions = ["miss curves are simulated: routes replayed token by token through one cache of whole records"]
    if config.profile == "mini":
        conditions.append("profile mini: its overlap was set by a training target and is no evidence on how large models route")
    if changed:
        conditions.append(f"thresholds differ from the registered ones: {', '.join(changed)}")
    return conditions


def _summary(measures: Measures) -> str:
    best = measures.tables["acceptance"].sort("acceptance_needed").row(0, named=True)
    return (
        f"LFRU misses {_range(measures.miss_ratio)} of what uniform draws miss, "
        f"{_range(measures.miss_ratio_popularity)} of what draws by popularity miss; "
        f"U_4 is {_range(measures.union_ratio)} of draws'; "
        f"blocks of {best['block']} break even at {best['acceptance_needed']:.0%} acceptance."
    )


def _range(estimate: Estimate) -> str:
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
    save_evidence(made, at_fraction=config.at_fraction, max_acceptance=config.max_acceptance, source=source, to=folder.artifacts)
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
        "unions": "Distinct experts a layer over B tokens (trace)",
        "break_even": "U_B / (top-k tau): routed bytes per committed token over plain decode's, below 1 pays (trace)",
        "misses": "Misses per decoded token (simulated)",
    },
    prepare=lambda config: config.source.prepare(),
    inputs=lambda config: config.source.inputs(),
    run=_run,
)
"""The gate, as the runner knows it."""
