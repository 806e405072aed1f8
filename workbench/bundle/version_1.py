"""Rules of older versions for the checks of older bundles: how tokens were counted and digests were made."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from workbench.config import Config, read_toml


def as_version_1_counted(events: pl.DataFrame) -> pl.DataFrame:
    """Events of version 1, changed so that the whole run is one turn of one request.

    In version 1, bounds, series by token and detectors counted prompts and idle times between turns as token time.
    """
    starts = pl.col("kind").eq_missing("mark") & pl.col("name").eq_missing("request_start")
    return events.filter(~starts).with_columns(request=pl.lit(0, pl.Int32))


def digest_as_written(config: type[Config], path: Path) -> str:
    """The digest of a configuration from the file alone, whatever settings were added, renamed or removed since.

    TOML has no null: settings of `config` that may be null and that the file lacks are taken to be null.
    """
    canonical = json.dumps(_with_nulls(config, read_toml(path)), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _with_nulls(config: type[Config], values: Mapping[str, Any]) -> dict[str, Any]:
    written = dict(values)
    for name, field in config.model_fields.items():
        if name not in written and field.default is None:
            written[name] = None
        elif isinstance(field.annotation, type) and issubclass(field.annotation, Config) and isinstance(written.get(name), dict):
            written[name] = _with_nulls(field.annotation, written[name])
    return written
