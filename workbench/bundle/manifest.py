"""Manifest of a bundle: SHA-256 of each file, and of every column and block of rows of its event tables.

Hashing columns and blocks takes a second, and lets `check` say where a number was altered, not only that one was.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import polars as pl

from workbench.config import Config

BUNDLE_VERSION = 1
MANIFEST = "manifest.json"
BLOCK_ROWS = 64


class FileEntry(Config):
    """Size and digest of one file."""

    num_bytes: int
    """Its size."""
    sha256: str
    """SHA-256 of the file's bytes."""


class TableEntry(Config):
    """Digests of one table of events."""

    columns: dict[str, str]
    """SHA-256 of each column's values."""
    blocks: list[str]
    """SHA-256 of every 64 rows."""


class BundleManifest(Config):
    """Content of `manifest.json`, the first file of a bundle."""

    version: int = BUNDLE_VERSION
    """Schema version."""
    kind: str
    """Kind of the run, e.g. generate."""
    run_id: str
    """Id of the run."""
    workbench: str
    """Version of the workbench that made the bundle."""
    needs: dict[str, str]
    """Digests of the stores and checkpoints that a repetition of the run would need, by tag."""
    left_out: tuple[str, ...] = ()
    """Inputs of the run that the bundle lacks."""
    files: dict[str, FileEntry]
    """Files by name in the archive."""
    tables: dict[str, TableEntry]
    """Tables of events by name in the archive."""

    @property
    def content_digest(self) -> str:
        """SHA-256 over names and digests of all files; senders quote it beside the file."""
        listing = json.dumps({name: entry.sha256 for name, entry in sorted(self.files.items())})
        return hashlib.sha256(listing.encode()).hexdigest()


def file_entry(path: Path) -> FileEntry:
    """Size and SHA-256 of a file."""
    with path.open("rb") as file:
        return FileEntry(num_bytes=path.stat().st_size, sha256=hashlib.file_digest(file, "sha256").hexdigest())


def table_entry(frame: pl.DataFrame) -> TableEntry:
    """Digests of a table's columns and blocks, over the JSON of its values: independent of how the file was written."""
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
