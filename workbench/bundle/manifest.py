"""What a bundle says of its files: SHA-256 of each, and of every column and block of rows of its event tables.

Columns and blocks cost a second to hash and let `check` say where a number was altered, not only that one was.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import polars as pl

from workbench.config import Config
from workbench.errors import BadInput

BUNDLE_VERSION = 1
MANIFEST = "manifest.json"
BLOCK_ROWS = 64
MAX_ROWS = 50_000_000
_ROWS_PER_BYTE = 4
"""No honest event takes less than a quarter of a byte; a file that claims so is made to fill memory."""


class FileEntry(Config):
    """One file."""

    num_bytes: int
    """Its size."""
    sha256: str
    """Of its bytes."""


class TableEntry(Config):
    """One table of events."""

    columns: dict[str, str]
    """SHA-256 of each column's values."""
    blocks: list[str]
    """SHA-256 of every 64 rows."""


class BundleManifest(Config):
    """Content of `manifest.json`, the first file of a bundle."""

    version: int = BUNDLE_VERSION
    """Schema version."""
    kind: str
    """Of the run."""
    run_id: str
    """Of the run."""
    workbench: str
    """Version that made the bundle."""
    needs: dict[str, str]
    """Digests of what a rerun would need: stores, checkpoint."""
    left_out: tuple[str, ...] = ()
    """What the run refers to and the bundle does not hold."""
    files: dict[str, FileEntry]
    """By name in the archive."""
    tables: dict[str, TableEntry]
    """By name in the archive."""

    @property
    def content_digest(self) -> str:
        """SHA-256 over names and digests of all files: what a sender quotes beside the file."""
        listing = json.dumps({name: entry.sha256 for name, entry in sorted(self.files.items())})
        return hashlib.sha256(listing.encode()).hexdigest()


def file_entry(path: Path) -> FileEntry:
    """Size and SHA-256 of a file."""
    with path.open("rb") as file:
        return FileEntry(num_bytes=path.stat().st_size, sha256=hashlib.file_digest(file, "sha256").hexdigest())


def table_entry(frame: pl.DataFrame) -> TableEntry:
    """Digests of a table's columns and blocks, over the JSON of its values: the same whatever wrote the file."""
    columns = {name: _digest(frame[name].to_list()) for name in frame.columns}
    blocks = [_digest(frame.slice(start, BLOCK_ROWS).rows()) for start in range(0, frame.height, BLOCK_ROWS)]
    return TableEntry(columns=columns, blocks=blocks)


def _digest(values: Any) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def differences(said: TableEntry, found: TableEntry) -> str:
    """Where two tables differ, in words: columns and rows."""
    columns = [name for name in sorted({*said.columns, *found.columns}) if said.columns.get(name) != found.columns.get(name)]
    if len(said.blocks) != len(found.blocks):
        return f"it had about {len(said.blocks) * BLOCK_ROWS} rows and has about {len(found.blocks) * BLOCK_ROWS}"
    rows = [i for i, (a, b) in enumerate(zip(said.blocks, found.blocks, strict=True)) if a != b]
    if not rows:
        return "its values are the same, only the file was written anew"
    spans = [f"{i * BLOCK_ROWS} to {(i + 1) * BLOCK_ROWS - 1}" for i in rows[:3]] + ["more"] * (len(rows) > 3)
    return f"column {', '.join(columns)}, rows {', '.join(spans)}"


def read_table(path: Path) -> pl.DataFrame:
    """A parquet file of a bundle. Raises BadInput as `check_rows` does."""
    check_rows(path)
    return pl.read_parquet(path)


def check_rows(path: Path) -> None:
    """Raises BadInput on a parquet file that can't be read or claims more rows than its bytes can hold."""
    try:
        count = pl.scan_parquet(path).select(pl.len()).collect().item()
        if count > min(MAX_ROWS, _ROWS_PER_BYTE * path.stat().st_size):
            raise BadInput(f"{path.name} claims {count:,} rows in {path.stat().st_size:,} bytes: refused")
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise BadInput(f"{path.name} is not a readable parquet file ({str(error).splitlines()[0]})") from None
