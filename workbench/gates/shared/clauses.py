"""Clauses, limits and conditions of the gates that compare decode runs on several disks. Pure: tables in, criteria out.

The code of a clause on an emulated disk ends in an @ and the disk's name.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from workbench.gates.shared.config import ComparisonConfig, disk_words
from workbench.gates.shared.intervals import Interval
from workbench.gates.shared.verdicts import Estimated, clause
from workbench.schema import Criterion

_PROFILE_WORDS = {
    "mini": "profile mini: records of a hundredth of the full size, a model of 8 layers",
    "slice": "profile slice: true records, random weights and routes, few layers",
}


def disk_clause(disk: str, code: str, statement: str, found: Estimated, relation: Any, threshold: float) -> Criterion:
    """The clause `code` on a disk, with the disk in its code and the evidence in its statement."""
    suffix, evidence = (f"@{disk_words(disk)}", "emulated") if disk else ("", "physical")
    return clause(f"{code}{suffix}", f"{statement} ({evidence})", found, relation, threshold)


def identity_clause(code: str, identity: pl.DataFrame, arms: pl.DataFrame) -> Criterion:
    """The clause that no digest differs, in identity runs (`IDENTITY_SCHEMA`) or in the arms of a cohort (`ARM_SCHEMA`)."""
    differing = identity.filter(~pl.col("identical")).height
    cohorts = arms.filter("differs").select("disk", "comparison", "cohort").n_unique() if arms.height else 0
    statement = f"runs and cohorts whose digests differ, of {identity.height} runs under other orders, faults and settings"
    # a single run that differs fails the clause
    return clause(code, statement, Interval.exact(differing + cohorts), "<=", 0.0)


def sample_limit(code: str, identity: pl.DataFrame, config: ComparisonConfig) -> dict[str, str]:
    """The limit `code` of a smoke run, or where fewer identity runs were made than a full verdict needs; else empty."""
    counts = dict(identity.group_by("kind").len().iter_rows())
    orders, faults = counts.get("order", 0), counts.get("fault", 0)
    if not config.smoke and min(orders, faults) >= config.min_orders:
        return {}
    smoke = "smoke run: " if config.smoke else ""
    return {code: f"{smoke}{orders} random orders and {faults} faults; a full verdict needs {config.min_orders} of each"}


def disk_conditions(config: ComparisonConfig) -> list[str]:
    """Conditions of every verdict on these arms: cache, prompt, and the disks with how their bytes were read."""
    conditions = [f"a cache of {config.cache_over_least:g} times the smallest that the store admits, decode after a short prompt"]
    if not config.is_emulated:
        return [*conditions, "cold store, read past the page cache"]
    disks = ", ".join(map(disk_words, config.disks))
    conditions.append(f"emulated disks, whose bytes are read from the page cache: {disks}; no physical verdict")
    if not config.envelopes:
        conditions.append(
            "each disk is slowed by the ratio of Flash-Next's record size to mini's; n-gram pages are slowed by the same "
            "ratio although they are not smaller, so waits for pages are too long"
        )
    return conditions


def profile_conditions(profile: str) -> list[str]:
    """A condition that says how the profile's model differs from the full one; empty for `flash-next`."""
    return [_PROFILE_WORDS[profile]] if profile in _PROFILE_WORDS else []


def outcome_by_disk(criteria: Sequence[Criterion]) -> list[Mapping[str, str]]:
    """One row per clause, one column per disk: outcomes."""
    rows: dict[str, dict[str, str]] = {}
    for each in criteria:
        code, _, disk = each.code.partition("@")
        rows.setdefault(code, {"clause": code})[disk or "any disk"] = each.outcome.value
    columns = list(dict.fromkeys(name for row in rows.values() for name in row))
    return [{name: row.get(name, "") for name in columns} for row in rows.values()]


def spans(criteria: Sequence[Criterion]) -> dict[str, str]:
    """By clause code without its disk: the clause's value, for several disks as `least to greatest`."""
    values: dict[str, list[float]] = {}
    for each in criteria:
        values.setdefault(each.code.partition("@")[0], []).append(each.value)
    return {code: _span(of_code) for code, of_code in values.items()}


def _span(values: Sequence[float]) -> str:
    known = [f"{value:.3g}" for value in sorted(value for value in values if not math.isnan(value))]
    return " to ".join(dict.fromkeys(known[:1] + known[-1:])) or "not measured"
