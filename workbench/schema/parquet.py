"""Writes parquet tables atomically."""

import errno
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from workbench.paths import write_atomically

_BATCH_ROWS = 1 << 15
"""Rows of a lazy table that are written together: more of them take more memory and make hardly smaller files."""


def write_parquet(frame: pl.DataFrame | pl.LazyFrame, path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Writes a table whole or not at all; rows of a lazy table pass through memory in batches.

    Raises OSError, also on a full disk, for which polars has an error of its own.
    """
    if isinstance(frame, pl.LazyFrame):
        _stream(frame, path, dict(metadata or {}))
        return
    content = io.BytesIO()
    frame.write_parquet(content, metadata=dict(metadata or {}))
    write_atomically(path, content.getvalue())


def _stream(frame: pl.LazyFrame, path: Path, metadata: dict[str, str]) -> None:
    part = path.with_name(path.name + ".part")
    try:
        frame.sink_parquet(part, metadata=metadata, row_group_size=_BATCH_ROWS)
        part.replace(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        part.unlink(missing_ok=True)
        raise OSError(getattr(error, "errno", None) or errno.EIO, str(error), str(path)) from None


def scan_parquet(paths: Sequence[Path]) -> pl.LazyFrame:
    """The rows of tables one behind the other, read when they are needed; a path is a name, never a pattern."""
    return pl.scan_parquet(list(paths), glob=False)
