"""Estimates that only Gate C needs: waits for n-gram pages, and prefill modes compared by repeat. Pure."""

import math

import polars as pl

from workbench.gates.shared.intervals import Cohort, Interval, candidate, interval


def page_wait_share(cohort: Cohort) -> float:
    """Exposed wait for n-gram pages divided by token time, in arms B; NaN where no page was read."""
    if not candidate(cohort["page_misses"]):
        return math.nan
    return candidate(cohort["ple_wait_ms"]) / candidate(cohort["token_ms"])


def mode_ratio(modes: pl.DataFrame, tile: int, above: str, below: str) -> Interval:
    """Seconds of mode `above` divided by those of mode `below` at a tile, paired by repeat."""
    at = modes.filter(tile=tile)
    pairs = at.filter(mode=above).join(at.filter(mode=below), on="repeat", suffix="_below")
    return interval((pairs["seconds"] / pairs["seconds_below"]).to_list(), 2)


def chosen_modes(modes: pl.DataFrame, tile: int) -> list[str]:
    """Modes that the runtime chose at a tile, in any repeat."""
    return sorted(set(modes.filter(tile=tile, mode="auto")["chosen"].drop_nulls()))


def choice_ratio(modes: pl.DataFrame, tile: int, faster: str) -> Interval:
    """Seconds of the chosen mode, in forced passes, / the faster mode's; the worse choice where repeats chose differently."""
    ratios = [mode_ratio(modes, tile, chosen, faster) for chosen in chosen_modes(modes, tile)]
    return max(ratios, key=lambda each: each.value, default=Interval())


def faster_mode(modes: pl.DataFrame, tile: int) -> str:
    """`micro` or `macro`: the mode with the smaller mean time at a tile."""
    forced = modes.filter(pl.col("tile") == tile, pl.col("mode").is_in(["micro", "macro"]))
    return str(forced.group_by("mode").agg(pl.col("seconds").mean()).sort("seconds", "mode")["mode"][0])


def unique_fraction(modes: pl.DataFrame, tile: int) -> float:
    """Share of the layer's bytes that the tile uses."""
    at = modes.filter(tile=tile)
    return float(at["union_bytes"].to_numpy().sum() / at["layer_bytes"].to_numpy().sum())


def overread_over_hidden(modes: pl.DataFrame, tile: int) -> Interval:
    """Macro passes at a tile: time reading records that no token used / read time hidden behind compute.

    Infinite where no read time was hidden.
    """
    macro = modes.filter(tile=tile, mode="macro")
    overread_s = macro["io_s"] * (macro["physical_bytes"] - macro["union_bytes"]) / macro["physical_bytes"]
    hidden_s = macro["io_s"] - macro["wait_s"]
    shares = [over / hidden if hidden > 0 else math.inf for over, hidden in zip(overread_s, hidden_s, strict=True)]
    if any(math.isinf(share) for share in shares):
        return Interval.exact(math.inf)
    return interval(shares, 2)
