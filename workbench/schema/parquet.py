"""Writes parquet tables atomically."""

import io
from collections.abc import Mapping
from pathlib import Path

import polars as pl

from workbench.paths import write_atomically


def write_parquet(frame: pl.DataFrame, path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Writes a table whole or not at all. Raises OSError, also on a full disk, where polars would raise an error of its own."""
    content = io.BytesIO()
    frame.write_parquet(content, metadata=dict(metadata or {}))
    write_atomically(path, content.getvalue())
