"""Errors of the simulated twin against live runs (hits, token time, exposed wait), and the verdict whether it is fit."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl

from workbench.schema import Criterion, Outcome, Verdict, decide
from workbench.schema.generated import generated, generated_passes
from workbench.units import NS_PER_MS

QUANTITIES = ("hits", "token_time", "exposed_wait")
"""Compared quantities; each is the last part of its clause's code."""
ARM = "validation"
"""Tag `arm` of a validation's run."""
LEAST_WAIT_SHARE = 0.05
"""Smallest live exposed wait that an error is divided by, as a share of token time: avoids dividing by nearly 0."""

_RESAMPLES = 4000


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """Figures of the generated tokens of a run, live or simulated."""

    hit_rate: float
    """Share of the selected experts that were in the cache."""
    token_ms: float
    """Durations of the generating passes, milliseconds per committed token."""
    exposed_wait_ms: float
    """Time that compute waited for records and pages, milliseconds per committed token."""
    misses: float
    """Records read per committed token."""


def decoded(events: pl.DataFrame) -> Decoded:
    """The figures of a run's events."""
    rows, ended = generated(events), generated_passes(events)
    num_tokens, waits = int(ended["committed_tokens"].sum()), rows.filter(kind="wait")
    demands = rows.filter(kind="demand", store="expert").select("hits", "joined", "misses").sum().row(0)
    hits, joined, misses = (float(count) for count in demands)
    return Decoded(
        hit_rate=hits / (hits + joined + misses),
        token_ms=int(ended["duration_ns"].sum()) / num_tokens / NS_PER_MS,
        exposed_wait_ms=int(waits["duration_ns"].sum()) / num_tokens / NS_PER_MS,
        misses=misses / num_tokens,
    )


def error_row(live: Decoded, twin: Decoded) -> dict[str, float]:
    """Both runs' figures and the twin's relative errors, `twin / live - 1`."""
    shown = {f"{who}_{name}": value for who, run in (("live", live), ("twin", twin)) for name, value in asdict(run).items()}
    least_ms = LEAST_WAIT_SHARE * live.token_ms
    wait_error = (twin.exposed_wait_ms - live.exposed_wait_ms) / max(live.exposed_wait_ms, least_ms)
    return shown | {
        "hits_error": twin.hit_rate / live.hit_rate - 1,
        "token_time_error": twin.token_ms / live.token_ms - 1,
        "exposed_wait_error": wait_error,
    }


def error_table(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The distribution of each quantity's errors over the runs; `mean_absolute` with its 95 % interval."""
    table = []
    for name in QUANTITIES:
        errors = np.array([row[f"{name}_error"] for row in rows])
        low, high = _interval(np.abs(errors))
        table.append(
            {
                "quantity": name,
                "runs": len(errors),
                "lowest": float(errors.min()),
                "median": float(np.median(errors)),
                "highest": float(errors.max()),
                "mean_absolute": float(np.abs(errors).mean()),
                "mean_absolute_low": low,
                "mean_absolute_high": high,
            }
        )
    return table


def _interval(values: np.ndarray) -> tuple[float, float]:
    """95 % bootstrap interval of a mean; one run has none."""
    if len(values) < 2:
        return math.nan, math.nan
    drawn = np.random.default_rng(0).choice(values, (_RESAMPLES, len(values))).mean(axis=1)
    low, high = np.percentile(drawn, [2.5, 97.5])
    return float(low), float(high)


def judge_twin(rows: Sequence[Mapping[str, Any]], *, max_error: float, min_runs: int, conditions: Sequence[str]) -> Verdict:
    """Pass (fit) when each mean absolute error, with its whole interval, is at most `max_error`; fail when one is above it.

    With fewer than `min_runs` runs a pass becomes inconclusive, with the code `twin.sample`.
    """
    table = error_table(rows)
    clauses = [
        Criterion(
            code=f"twin.{row['quantity']}",
            statement=f"mean absolute error of {row['quantity'].replace('_', ' ')}",
            value=row["mean_absolute"],
            low=row["mean_absolute_low"],
            high=row["mean_absolute_high"],
            relation="<=",
            threshold=max_error,
        )
        for row in table
    ]
    found = ", ".join(f"{row['quantity'].replace('_', ' ')} {row['mean_absolute']:.1%}" for row in table)
    verdict = decide(clauses, conditions=conditions)
    if len(rows) < min_runs and verdict.outcome is Outcome.PASS:
        verdict = verdict.model_copy(update={"outcome": Outcome.INCONCLUSIVE, "codes": ("twin.sample",)})
    word = {Outcome.PASS: "fit", Outcome.FAIL: "unfit", Outcome.INCONCLUSIVE: "not shown to be fit"}[verdict.outcome]
    return verdict.model_copy(update={"summary": f"the twin is {word}: mean absolute errors over {len(rows)} live runs: {found}"})
