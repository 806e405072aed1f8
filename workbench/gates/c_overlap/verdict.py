"""Gate C's clauses, each with its code, hypothesis and evidence. Pure: tables in, criteria out.

A clause that rests on an emulated disk carries the disk's name behind an @; one that rests on timed waits in the place of
compute (the prefill modes) is emulated on every profile, and a physical verdict leaves it out.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from workbench.analysis.storage import median_of
from workbench.experiments.modes import MODE_SCHEMA
from workbench.gates.c_overlap import estimates as estimates
from workbench.gates.c_overlap.arms import ARM_SCHEMA
from workbench.gates.c_overlap.config import REGISTERED, OverlapConfig
from workbench.gates.c_overlap.estimates import Interval
from workbench.gates.c_overlap.identity import IDENTITY_SCHEMA
from workbench.gates.c_overlap.interference import RATE_SCHEMA
from workbench.gates.c_overlap.modes import modes_profile
from workbench.gates.c_overlap.plan import EARLY, LANES, SPLIT, WAVES, disk_words
from workbench.hardware import machine
from workbench.schema import Criterion

TABLES = {"arms": ARM_SCHEMA, "identity": IDENTITY_SCHEMA, "modes": MODE_SCHEMA, "rates": RATE_SCHEMA}
"""Columns of the tables that the clauses are drawn from, by name in `artifacts/tables`."""


@dataclass(frozen=True, kw_only=True)
class Measures:
    """What the clauses turn on: tables with the columns of `TABLES`."""

    arms: pl.DataFrame
    """Every arm of every comparison."""
    identity: pl.DataFrame
    """Every checked run: kind, case, whether it was identical."""
    modes: pl.DataFrame
    """Every prefill pass."""
    rates: pl.DataFrame
    """Compute and reads alone and at once, by round."""


def criteria_of(found: Measures, config: OverlapConfig) -> tuple[Criterion, ...]:
    """The registered clauses with their figures; on a physical run without the emulated ones."""
    own = [_identity(found), _interference(found, config)]
    own += [clause for disk in config.disks for clause in _of_disk(found.arms, config, disk)]
    return (*own, *mode_criteria(found, config)) if config.is_emulated else tuple(own)


def _identity(found: Measures) -> Criterion:
    """One run that differs is one too many; cohorts whose arms differ count as well."""
    differing = found.identity.filter(~pl.col("identical")).height
    cohorts = found.arms.filter("differs").select("disk", "comparison", "cohort").n_unique() if found.arms.height else 0
    words = f"runs and cohorts whose digests differ, of {found.identity.height} runs under other orders, faults and settings"
    return _criterion("C.identity", words, Interval.exact(differing + cohorts), "<=", 0.0)


def _interference(found: Measures, config: OverlapConfig) -> Criterion:
    kept = median_of(found.rates["kept"].to_list())
    words = "H4: rates of compute and reads at once over each alone, sum less 1: 1 neither slows, 0 no overlap (physical)"
    known = Interval(value=kept.value, low=kept.low, high=kept.high)
    return _criterion("C.interference", words, known, ">=", config.min_overlap)


def _of_disk(arms: pl.DataFrame, config: OverlapConfig, disk: str) -> Iterator[Criterion]:
    suffix, evidence = (f"@{disk_words(disk)}", "emulated") if disk else ("", "physical")
    least = config.min_cohorts
    waves, early, lanes, split = (
        estimates.cohorts_of(arms, disk_words(disk), name, config.cohorts) for name in (WAVES, EARLY, LANES, SPLIT)
    )
    slower = estimates.rate_ratio(waves, "token_ms", least)
    clauses = (
        (
            "C.exposed_wait",
            f"H4: exposed wait a token, waves of {config.wave} over barrier",
            estimates.of_cohorts(waves, estimates.wait_ratio, least),
            "<",
            config.max_wait_ratio,
        ),
        (
            "C.waves",
            f"H4: tokens/s, waves of {config.wave} over barrier",
            Interval(value=1 / slower.value, low=1 / slower.high, high=1 / slower.low),
            ">=",
            1 + config.min_wave_gain,
        ),
        (
            "C.split",
            "H4: bytes read a second, components of records apart over whole",
            estimates.rate_ratio(split, "read_gbps", least),
            ">=",
            config.min_split_ratio,
        ),
        (
            "C.ple_wait",
            "H1: exposed wait for pages asked for early, over token time",
            estimates.of_cohorts(early, estimates.page_wait_share, least),
            "<=",
            config.max_ple_wait,
        ),
        (
            "C.ple_lanes",
            "H1: exposed waits, page lanes less one queue, over token time",
            estimates.of_cohorts(lanes, estimates.added_wait_share, least),
            "<=",
            config.max_lane_cost,
        ),
    )
    for code, words, known, relation, threshold in clauses:
        yield _criterion(f"{code}{suffix}", f"{words} ({evidence})", known, relation, threshold)


def mode_criteria(found: Measures, config: OverlapConfig) -> tuple[Criterion, ...]:
    """H5's clauses: always emulated, because compute is a timed wait."""
    modes, words = found.modes, " (emulated: compute is a timed wait)"
    tiles = sorted(modes["tile"].unique().to_list())
    full = [tile for tile in tiles if estimates.unique_fraction(modes, tile) >= config.near_full]
    chosen = [tile for tile in tiles if "macro" in estimates.chosen_modes(modes, tile)]
    clauses = (
        (
            "C.micro_full",
            f"H5: seconds, macro over micro, where the union is at least {config.near_full:.0%} of a layer",
            _worst([estimates.mode_ratio(modes, tile, "macro", "micro") for tile in full]),
            config.max_full_ratio,
        ),
        (
            "C.macro_overlap",
            "H5: time of macro's over-read over the reading it hid, where it is chosen",
            _worst([estimates.overread_over_hidden(modes, tile) for tile in chosen]),
            config.max_overread,
        ),
        (
            "C.crossover",
            "H5: seconds of the chosen mode over the faster one's, at the worst tile",
            _crossover(modes, tiles),
            1 + config.max_choice_loss,
        ),
    )
    return tuple(_criterion(code, text + words, known, "<=", threshold) for code, text, known, threshold in clauses)


def _worst(found: Sequence[Interval]) -> Interval:
    """The greatest; of none, or where one is not known, nothing."""
    known = not any(math.isnan(each.value) for each in found)
    return max(found, key=lambda each: each.value, default=Interval()) if known else Interval()


def _crossover(modes: pl.DataFrame, tiles: Sequence[int]) -> Interval:
    """Without an interval where one mode is faster at every tile: then no crossover was there to be found."""
    faster = {tile: estimates.faster_mode(modes, tile) for tile in tiles}
    worst = _worst([estimates.choice_ratio(modes, tile, mode) for tile, mode in faster.items()])
    if len(set(faster.values())) == 2:
        return worst
    return Interval(value=worst.value, low=math.nan, high=math.nan)


def _criterion(code: str, words: str, known: Interval, relation: Any, threshold: float) -> Criterion:
    return Criterion(code=code, statement=words, **vars(known), relation=relation, threshold=threshold)


def limits_of(found: Measures, config: OverlapConfig) -> dict[str, str]:
    """By clause code, why this run can't give a full pass."""
    limits = {}
    counts = dict(found.identity.group_by("kind").len().iter_rows())
    few = [kind for kind in ("order", "fault") if counts.get(kind, 0) < config.min_orders]
    if config.smoke or few:
        limits["C.sample"] = (
            f"{'smoke run: ' if config.smoke else ''}{counts.get('order', 0)} random orders and {counts.get('fault', 0)} faults; "
            f"a full verdict needs {config.min_orders} of each"
        )
    return limits


def conditions_of(found: Measures, config: OverlapConfig) -> list[str]:
    """What every verdict of this configuration rests on."""
    cache = f"a cache of {config.cache_over_least:g} times the smallest that the store admits"
    conditions = [f"{cache}, decode after a short prompt"]
    if config.is_emulated:
        disks = ", ".join(map(disk_words, config.disks))
        conditions.append(f"emulated disks, whose bytes come from the page cache: {disks}; no physical verdict")
        if not config.envelopes:
            conditions.append(
                "each slowed by as much as records are smaller than Flash-Next's; n-gram pages alike, so they wait longer"
            )
    else:
        conditions.append("cold store, read past the page cache")
        conditions.append(_left_out(mode_criteria(found, config)))
    conditions.append(f"prefill modes: one layer of profile {modes_profile(config)}")
    if config.profile == "mini":
        conditions.append("profile mini: records a hundredth of the full size, computed on by a model of 8 layers")
    if config.profile == "slice":
        conditions.append("profile slice: true records, random weights and routes, few layers")
    if machine().virtual_machine:
        conditions.append("virtual machine: cold means out of the guest's page cache; the host's cache is not seen")
    defaults = OverlapConfig()
    if changed := [name for name in REGISTERED if getattr(config, name) != getattr(defaults, name)]:
        conditions.append(f"thresholds differ from the registered ones: {', '.join(changed)}")
    return conditions


def _left_out(clauses: Sequence[Criterion]) -> str:
    outcomes = ", ".join(f"{clause.code} {clause.outcome.value} ({clause.value:.3g})" for clause in clauses)
    return f"H5 is emulated (compute is a timed wait) and no part of this verdict: {outcomes}"


def outcome_by_disk(criteria: Sequence[Criterion]) -> list[Mapping[str, str]]:
    """One row a clause, one column a disk: outcomes side by side."""
    rows: dict[str, dict[str, str]] = {}
    for clause in criteria:
        code, _, disk = clause.code.partition("@")
        rows.setdefault(code, {"clause": code})[disk or "any disk"] = clause.outcome.value
    columns = list(dict.fromkeys(name for row in rows.values() for name in row))
    return [{name: row.get(name, "") for name in columns} for row in rows.values()]
