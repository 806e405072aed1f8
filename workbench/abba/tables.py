"""Tables of a series for people: every cohort and arm, invalid cohorts with their reasons."""

import math
from collections.abc import Sequence
from typing import Any

from workbench.abba.records import ORDER, AbbaConfig, CohortRecord
from workbench.abba.statistics import control_drift, log_ratio
from workbench.abba.validity import values


def ratio_of(config: AbbaConfig, gain: float) -> float:
    """The ratio of the metric, B / A, for a log gain (positive is better)."""
    return math.exp(gain if config.better == "higher" else -gain)


def series_tables(config: AbbaConfig, cohorts: Sequence[CohortRecord]) -> dict[str, list[dict[str, Any]]]:
    """Tables `cohorts` and `arms` of all cohorts, the invalid ones with their reasons."""
    return {"cohorts": [_cohort_row(config, cohort) for cohort in cohorts], "arms": [r for c in cohorts for r in _arm_rows(c)]}


def _cohort_row(config: AbbaConfig, cohort: CohortRecord) -> dict[str, Any]:
    found = values(cohort)
    complete = len(found) == len(ORDER) and min(found) > 0
    return {
        "cohort": cohort.number,
        **dict.fromkeys(ORDER),
        **{arm.name: arm.value for arm in cohort.arms},
        "ratio": ratio_of(config, log_ratio(found, config.better)) if complete else None,
        "control_drift": control_drift(found[0], found[3]) if complete else None,
        "candidate_spread": control_drift(found[1], found[2]) if complete else None,
        "counts": cohort.valid,
        "reasons": "; ".join(str(reason) for reason in cohort.reasons),
    }


def _arm_rows(cohort: CohortRecord) -> list[dict[str, Any]]:
    return [
        {
            "cohort": cohort.number,
            "arm": arm.name,
            "value": arm.value,
            "bytes_per_token": arm.bytes_per_token,
            "duration_s": round(arm.duration_s, 3),
            "cached_fraction": arm.cached_fraction,
            "other_cores": round(arm.watch.other_cores, 3),
            "swap_out_bytes": arm.watch.swap_out_bytes,
            "folder": arm.folder,
        }
        for arm in cohort.arms
    ]
