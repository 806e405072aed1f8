"""MLflow parameters and metrics of a comparison and its arms: the settings that differ, and one point per cohort."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from workbench.config import read_toml
from workbench.schema import Result, RunFolder

_SERIES = 5
"""Index of a comparison's folder in the `parents` of an arm's folder, `<series>/arms/<cohort>/<arm>/arm/<kind>/<id>`."""
_UNSHOWN = ("base", "command", "cache_files", "digests")
_BY_COHORT = ("ratio", "control_drift", "candidate_spread")


def arm_params(folder: RunFolder) -> dict[str, Any]:
    """The arm's values of the settings in which the two plans of its comparison differ; none for A against A."""
    plans = [_settings(folder.path.parents[_SERIES] / "artifacts" / f"plan-{letter}.toml") for letter in "AB"]
    own = _settings(folder.path / "config.toml")
    changed = [name for name in sorted({*plans[0], *plans[1]}) if plans[0].get(name) != plans[1].get(name)]
    return {name.rpartition(".")[2]: own[name] for name in changed if name in own}


def comparison_params(folder: RunFolder) -> dict[str, Any]:
    """Settings of a comparison, without the plan of its arms."""
    settings = read_toml(folder.path / "config.toml")
    shown = {name: value for name, value in settings.items() if name not in _UNSHOWN}
    return shown | {"change": ", ".join(settings.get("change", [])) or "none"}


def cohort_series(result: Result) -> Iterator[tuple[str, int, float]]:
    """Metric key, cohort number and value of each figure by cohort, invalid cohorts included."""
    for row in result.tables.get("cohorts", []):
        for name in _BY_COHORT:
            if row.get(name) is not None and math.isfinite(row[name]):
                yield f"cohorts/{name}", row["cohort"], row[name]


def _settings(path: Path) -> dict[str, Any]:
    return dict(_flatten(read_toml(path))) if path.exists() else {}


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
