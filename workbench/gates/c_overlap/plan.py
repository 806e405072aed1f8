"""Gate C's comparisons, and the settings that must leave its digests as they are."""

import itertools
from typing import Any

from workbench.gates.c_overlap.config import OverlapConfig
from workbench.gates.shared.comparisons import Comparison
from workbench.gates.shared.identity import WAVE_WIDTHS
from workbench.gates.traces import profile_geometry
from workbench.runtime.memory import float32_scales_bytes

WAVES, EARLY, LANES, SPLIT = "waves", "early pages", "page lanes", "split records"
"""Names of the comparisons that decide."""


def comparisons(config: OverlapConfig) -> list[Comparison]:
    """Every comparison of Gate C: those that decide, then those that are only shown."""
    return [*_deciding(config), *_shown(config)]


def _deciding(config: OverlapConfig) -> list[Comparison]:
    return [
        Comparison(name=WAVES, setting="wave", control="barrier", candidate=config.wave),
        Comparison(name=EARLY, setting="ple", control="late", candidate="early"),
        Comparison(name=LANES, setting="queue", control="fifo", candidate="lanes"),
        Comparison(name=SPLIT, setting="split_components", control=False, candidate=True),
    ]


def _shown(config: OverlapConfig) -> list[Comparison]:
    others = [width for width in WAVE_WIDTHS if width not in ("barrier", config.wave)]
    shown = [(f"waves of {width}", "wave", "barrier", width) for width in others]
    shown += [("misses read back", "readback", "ids", "misses")] if resolves_hits(config) else []
    shown += [("next layer", "predictor", "nothing", "next_layer")]
    return [
        Comparison(name=name, setting=setting, control=control, candidate=candidate, decides=False)
        for name, setting, control, candidate in shown
    ]


def resolves_hits(config: OverlapConfig) -> bool:
    """Whether hits can be resolved on the device: records small enough that one gather runs all of the pool."""
    return float32_scales_bytes(profile_geometry(config.profile)) > 0


def identity_changes(config: OverlapConfig) -> list[dict[str, Any]]:
    """Every wave width with records whole and apart (in a smoke run, in turn), then each other setting that moves bytes."""
    splits = (False, True)
    pairs = zip(WAVE_WIDTHS, itertools.cycle(splits)) if config.smoke else itertools.product(WAVE_WIDTHS, splits)
    changes: list[dict[str, Any]] = [{"wave": wave, "split_components": split} for wave, split in pairs]
    changes += [{"ple": "late"}, {"queue": "fifo"}, {"predictor": "next_layer"}, {"prefill": "macro"}, {"prefill": "micro"}]
    return changes + ([{"readback": "misses"}] if resolves_hits(config) else [])
