"""`manifest.json` of a store folder: its contents, its source, and digests of everything. It is written last.

A folder without a manifest is no store. Its paths are plain file names: nothing outside the folder is ever opened.
"""

import hashlib
import json
import os
import stat
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from workbench.config import Config
from workbench.errors import BadInput, UnmetPrerequisite
from workbench.geometry import Geometry
from workbench.units import MIB

MANIFEST_NAME = "manifest.json"
CONFIG_NAME = "config.json"
RESIDENT_NAME = "resident.safetensors"
EXPERTS_NAME = "experts.em2"
CHECKSUMS_NAME = "experts.crc"
_MAX_MANIFEST_BYTES = 4 * MIB


def ngrams_name(layer: int) -> str:
    """File name of the page store of one PLE layer."""
    return f"ngrams.{layer}.ple"


class FileEntry(Config):
    """One file of the folder."""

    num_bytes: int
    """Size of the file."""
    sha256: str
    """SHA-256 of the whole file; of `.em2` and `.ple` stores the digest in their header, which binds all the rest."""


class SourceIdentity(Config):
    """What the store was made from."""

    sha256: str
    """SHA-256 of the one file, or of the sorted digests of all shards; for a generated store, of its recipe."""
    num_bytes: int
    """Bytes of all shards; 0 for a generated store."""
    num_tensors: int
    """Tensors of all shards."""


class ExpertEntry(Config):
    """The routed experts."""

    storage_format: int
    """1 interleaved, 2 planar."""
    bits: int
    """Bits per weight."""
    group_size: int
    """Weights that share a scale and a bias."""
    layers: tuple[int, ...]
    """Zero-based indices; the MTP head's experts have the index after the last layer's."""
    payload_sha256: str
    """Digest of the payload: the identity of the store."""


class NgramEntry(Config):
    """One n-gram table."""

    layer: int
    """Zero-based index of the layer that reads it."""
    codec: str
    """bf16 or affine4."""
    page_bytes: int
    """Size of a page."""
    num_rows: int
    """Rows, padding included."""


class StoreManifest(Config):
    """Content of `manifest.json`. No times and no paths: the same source and recipe give the same bytes."""

    version: Literal[1] = 1
    """Schema version."""
    recipe: dict[str, str | int]
    """The command and settings that made the store."""
    source: SourceIdentity
    """What the store was made from."""
    geometry: dict[str, Any]
    """Geometry of the model."""
    experts: ExpertEntry
    """The routed experts."""
    ngrams: tuple[NgramEntry, ...]
    """The n-gram tables, by layer."""
    files: dict[str, FileEntry]
    """Every other file of the folder, by name."""

    def to_bytes(self) -> bytes:
        """The file."""
        return (json.dumps(self.model_dump(mode="json"), indent=1) + "\n").encode()

    @property
    def sha256(self) -> str:
        """Digest of the file: the identity of the whole folder."""
        return hashlib.sha256(self.to_bytes()).hexdigest()


def geometry_fields(geometry: Geometry) -> dict[str, Any]:
    """A geometry as fields of the manifest."""
    fields: dict[str, Any] = json.loads(json.dumps(asdict(geometry)))
    return fields


def read_manifest(folder: Path) -> StoreManifest:
    """The manifest of a store folder, its paths and sizes checked. Raises BadInput, or UnmetPrerequisite when there is none."""
    path = folder / MANIFEST_NAME
    if not folder.is_dir() or not path.exists():
        raise UnmetPrerequisite(f"no store in {folder} (no {MANIFEST_NAME}): run `workbench pack` or `workbench slice` first")
    _check_regular(path, path.name, _MAX_MANIFEST_BYTES)
    try:
        content = json.loads(path.read_bytes())
        manifest = StoreManifest.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part)[:40] for part in first["loc"]) or "document"
        raise BadInput(f"{path}: {place}: {first['msg']} (damaged: pack again)") from None
    except (ValueError, RecursionError):
        raise BadInput(f"{path}: not JSON (damaged: pack again)") from None
    for name, entry in manifest.files.items():
        _check_file(folder, name, entry)
    return manifest


def _check_file(folder: Path, name: str, entry: FileEntry) -> None:
    if name != os.path.basename(name) or name in ("", ".", "..") or "\\" in name or "\0" in name:
        raise BadInput(f"{folder / MANIFEST_NAME}: path {name!r} leaves the folder: refused")
    if (num_bytes := _check_regular(folder / name, name)) != entry.num_bytes:
        raise BadInput(f"{folder / name}: {num_bytes} bytes, its manifest says {entry.num_bytes} (damaged: pack again)")


def _check_regular(path: Path, name: str, max_bytes: int | None = None) -> int:
    try:
        status = path.lstat()
    except OSError:
        raise BadInput(f"{path.parent}: {name} is missing: pack again") from None
    if not stat.S_ISREG(status.st_mode):
        raise BadInput(f"{path}: a link or no regular file: it could leave the folder, so it is refused")
    if max_bytes is not None and status.st_size > max_bytes:
        raise BadInput(f"{path}: {status.st_size} bytes, must be at most {max_bytes}")
    return status.st_size
