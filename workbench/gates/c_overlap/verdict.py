"""Gate C's clauses, each with its code, hypothesis and evidence. Pure: tables in, criteria out.

A clause on prefill modes rests on timed waits in the place of compute: it is emulated on every profile, and a physical verdict
leaves it out.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from workbench.analysis.storage import median_of
from workbench.experiments.modes import MODE_SCHEMA
from workbench.gates.c_overlap import estimates
from workbench.gates.c_overlap.config import REGISTERED, OverlapConfig
from workbench.gates.c_overlap.modes import modes_profile
from workbench.gates.c_overlap.plan import EARLY, LANES, SPLIT, WAVES
from workbench.gates.shared.arms import ARM_SCHEMA
from workbench.gates.shared.clauses import disk_clause, disk_conditions, identity_clause, profile_conditions, sample_limit
from workbench.gates.shared.config import disk_words
from workbench.gates.shared.identity import IDENTITY_SCHEMA
from workbench.gates.shared.interference import RATE_SCHEMA
from workbench.gates.shared.intervals import Interval, added_wait_share, cohorts_of, of_cohorts, rate_ratio, speedup, wait_ratio
from workbench.gates.shared.verdicts import changed_thresholds, clause, machine_conditions
from workbench.schema import Criterion

TABLES = {"arms": ARM_SCHEMA, "identity": IDENTITY_SCHEMA, "modes": MODE_SCHEMA, "rates": RATE_SCHEMA}
"""Columns of the tables that the clauses are drawn from, by name in `artifacts/tables`."""


@dataclass(frozen=True, kw_only=True)
class Measures:
    """Tables that the clauses are drawn from, with the columns of `TABLES`."""

    arms: pl.DataFrame
    """Every arm of every comparison."""
    identity: pl.DataFrame
    """Every identity run."""
    modes: pl.DataFrame
    """Every prefill pass of a tile in a mode."""
    rates: pl.DataFrame
    """Rates of compute and reads alone and at once, by round."""


def criteria_of(found: Measures, config: OverlapConfig) -> tuple[Criterion, ...]:
    """The registered clauses with their figures; on a physical run without the emulated ones."""
    own = [identity_clause("C.identity", found.identity, found.arms), _interference(found, config)]
    own += [each for disk in config.disks for each in _of_disk(found.arms, config, disk)]
    return (*own, *mode_criteria(found, config)) if config.is_emulated else tuple(own)


def _interference(found: Measures, config: OverlapConfig) -> Criterion:
    kept = median_of(found.rates["kept"].to_list())
    words = (
        "H4: rates of compute and of reads at once, each / its rate alone, sum less 1; 1: neither slows, 0: no overlap (physical)"
    )
    return clause("C.interference", words, kept, ">=", config.min_overlap)


def _of_disk(arms: pl.DataFrame, config: OverlapConfig, disk: str) -> Iterator[Criterion]:
    least = config.min_cohorts
    waves, early, lanes, split = (
        cohorts_of(arms, disk_words(disk), name, config.cohorts) for name in (WAVES, EARLY, LANES, SPLIT)
    )
    clauses = (
        (
            "C.exposed_wait",
            f"H4: exposed wait per token, waves of {config.wave} / barrier",
            of_cohorts(waves, wait_ratio, least),
            "<",
            config.max_wait_ratio,
        ),
        (
            "C.waves",
            f"H4: tokens/s, waves of {config.wave} / barrier",
            speedup(waves, least),
            ">=",
            1 + config.min_wave_gain,
        ),
        (
            "C.split",
            "H4: bytes read per second, components of records apart / whole records",
            rate_ratio(split, "read_gbps", least),
            ">=",
            config.min_split_ratio,
        ),
        (
            "C.ple_wait",
            "H1: exposed wait for n-gram pages requested early / token time",
            of_cohorts(early, estimates.page_wait_share, least),
            "<=",
            config.max_ple_wait,
        ),
        (
            "C.ple_lanes",
            "H1: (exposed waits with page lanes - with one queue) / token time",
            of_cohorts(lanes, added_wait_share, least),
            "<=",
            config.max_lane_cost,
        ),
    )
    return (disk_clause(disk, *each) for each in clauses)


def mode_criteria(found: Measures, config: OverlapConfig) -> tuple[Criterion, ...]:
    """H5's clauses: always emulated, because compute is a timed wait."""
    modes, words = found.modes, " (emulated: compute is a timed wait)"
    tiles = sorted(modes["tile"].unique().to_list())
    full = [tile for tile in tiles if estimates.unique_fraction(modes, tile) >= config.near_full]
    chosen = [tile for tile in tiles if "macro" in estimates.chosen_modes(modes, tile)]
    clauses = (
        (
            "C.micro_full",
            f"H5: prefill seconds, macro / micro, at tiles that use at least {config.near_full:.0%} of a layer",
            _worst([estimates.mode_ratio(modes, tile, "macro", "micro") for tile in full]),
            config.max_full_ratio,
        ),
        (
            "C.macro_overlap",
            "H5: time reading records that no token used / read time hidden behind compute, where macro is chosen",
            _worst([estimates.overread_over_hidden(modes, tile) for tile in chosen]),
            config.max_overread,
        ),
        (
            "C.crossover",
            "H5: prefill seconds, chosen mode / faster mode, at the worst tile",
            _crossover(modes, tiles),
            1 + config.max_choice_loss,
        ),
    )
    return tuple(clause(code, text + words, known, "<=", threshold) for code, text, known, threshold in clauses)


def _worst(found: Sequence[Interval]) -> Interval:
    """The interval with the greatest value; without a value where there is none or one of them has no value."""
    known = not any(math.isnan(each.value) for each in found)
    return max(found, key=lambda each: each.value, default=Interval()) if known else Interval()


def _crossover(modes: pl.DataFrame, tiles: Sequence[int]) -> Interval:
    """The choice's loss at the worst tile; without an interval where one mode is faster at every tile: no crossover to find."""
    faster = {tile: estimates.faster_mode(modes, tile) for tile in tiles}
    worst = _worst([estimates.choice_ratio(modes, tile, mode) for tile, mode in faster.items()])
    if len(set(faster.values())) == 2:
        return worst
    return Interval(value=worst.value, low=math.nan, high=math.nan)


def limits_of(found: Measures, config: OverlapConfig) -> dict[str, str]:
    """By clause code, why this run can't give a full pass."""
    return sample_limit("C.sample", found.identity, config)


def conditions_of(found: Measures, config: OverlapConfig) -> list[str]:
    """Conditions of every verdict of this configuration."""
    return [
        *disk_conditions(config),
        *([] if config.is_emulated else [_left_out(mode_criteria(found, config))]),
        f"prefill modes: one layer of profile {modes_profile(config)}",
        *profile_conditions(config.profile),
        *machine_conditions(),
        *changed_thresholds(config, REGISTERED),
    ]


def _left_out(clauses: Sequence[Criterion]) -> str:
    outcomes = ", ".join(f"{each.code} {each.outcome.value} ({each.value:.3g})" for each in clauses)
    return f"H5 is emulated (compute is a timed wait) and no part of this verdict: {outcomes}"
