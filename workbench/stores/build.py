"""Builds a store folder from any source of weights; `pack` and `slice` both use it.

The files are written layer by layer, with a few MiB in memory at a time. The same source and recipe give the
same bytes, interrupted or not.
"""

import errno
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from workbench.errors import BadInput, UnmetPrerequisite
from workbench.progress import progress
from workbench.stores.expert_header import AFFINE_INTERLEAVED, AFFINE_PLANAR
from workbench.stores.expert_writer import ExpertWriter
from workbench.stores.manifest import (
    CHECKSUMS_NAME,
    CONFIG_NAME,
    MANIFEST_NAME,
    RESIDENT_NAME,
    FileEntry,
    StoreManifest,
    geometry_fields,
    read_manifest,
)
from workbench.stores.ple_codecs import RowCodec, RowKind
from workbench.stores.ple_writer import PleWriter
from workbench.stores.safetensors_file import DTYPE_BYTES, safetensors_header
from workbench.stores.source import StoreSource
from workbench.stores.workspace import JOURNAL_NAME, PIECE_BYTES, FilePlan, Piece, Workspace
from workbench.units import PAGE_BYTES


@dataclass(frozen=True, kw_only=True)
class BuildSettings:
    """Layout of a store: formats, codec of the n-gram rows, page size."""

    storage_format: int = AFFINE_PLANAR
    """2 planar, 1 interleaved."""
    row_codec: str | None = None
    """bf16 or affine4; None: affine4 for rows whose width is a multiple of 32, else bf16."""
    page_bytes: int = PAGE_BYTES
    """Size of a PLE page: 4096 or 16384."""

    def __post_init__(self) -> None:
        if self.storage_format not in (AFFINE_INTERLEAVED, AFFINE_PLANAR):
            raise BadInput(f"format {self.storage_format} can't be written: choose 1 (interleaved) or 2 (planar)")
        if self.row_codec not in (None, *(kind.name.lower() for kind in RowKind)):
            raise BadInput(f"no such row codec: {self.row_codec!r} (bf16 or affine4)")

    def codec_of_rows(self, row_width: int) -> RowCodec:
        """The codec for n-gram rows of this width. Raises BadInput when the codec can't hold such rows."""
        if self.row_codec is None:
            return RowCodec.default(row_width)
        return RowCodec(kind=RowKind[self.row_codec.upper()], row_width=row_width)


class StoreBuilder:
    """Builds one store: plans every file before the first byte is written, then writes the files."""

    def __init__(self, source: StoreSource, settings: BuildSettings, command: dict[str, str | int]) -> None:
        """Raises BadInput when the settings don't fit the source."""
        geometry = source.geometry
        codec = settings.codec_of_rows(geometry.ple_row_width) if geometry.ple_layers else None
        self._source = source
        self._experts = ExpertWriter(source, settings.storage_format)
        self._ngrams = [PleWriter(source, layer, codec, settings.page_bytes) for layer in geometry.ple_layers if codec]
        self._resident = plan_resident(source)
        config = json.dumps(source.store_config(), indent=2).encode() + b"\n"
        self._small_files = {CONFIG_NAME: config, **source.small_files()}
        self._recipe: dict[str, str | int] = {
            **command,
            "storage_format": settings.storage_format,
            "row_codec": codec.kind.name.lower() if codec else "none",
            "page_bytes": settings.page_bytes,
        }

    @property
    def plans(self) -> list[FilePlan]:
        """The large files, in the order they are written."""
        return [self._experts.plan, *(writer.plan for writer in self._ngrams), self._resident]

    def build(self, folder: Path) -> StoreManifest:
        """Writes the store; after an interruption only the missing part, and nothing when the store is complete."""
        if (folder / MANIFEST_NAME).exists():
            return self._check_same(folder)
        identity = {
            "recipe": self._recipe,
            "source": self._source.identity.model_dump(),
            "config_sha256": _sha256(self._small_files[CONFIG_NAME]),
        }
        try:
            with Workspace(folder, identity) as work:
                work.check_space(self.plans)
                with progress("write", sum(plan.num_bytes for plan in self.plans)) as advance:
                    manifest = self._write(work, advance)
                work.install(manifest.to_bytes())
                return manifest
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise BadInput(f"packing into {folder} failed: {error.filename}: {error.strerror}") from None
            raise UnmetPrerequisite(
                f"{error.filename}: the disk is full ({error.strerror}); free some space; the same command then resumes"
            ) from None

    def _write(self, work: Workspace, advance: Callable[[int], None]) -> StoreManifest:
        files: dict[str, FileEntry] = {}

        def note(name: str, num_bytes: int, sha256: str) -> None:
            files[name] = FileEntry(num_bytes=num_bytes, sha256=sha256)

        plan = self._experts.plan
        payload = work.write(plan, advance)
        note(plan.name, plan.num_bytes, self._experts.header_sha256(payload))
        for writer in self._ngrams:
            pages = work.write(writer.plan, advance)
            note(writer.plan.name, writer.plan.num_bytes, writer.header(pages).header_sha256.hex())
        note(RESIDENT_NAME, self._resident.num_bytes, work.write(self._resident, advance).hex())
        for name, content in {CHECKSUMS_NAME: self._experts.checksums(payload), **self._small_files}.items():
            work.put(name, content)
            note(name, len(content), _sha256(content))
        return StoreManifest(
            recipe=self._recipe,
            source=self._source.identity,
            geometry=geometry_fields(self._source.geometry),
            experts=self._experts.entry(payload),
            ngrams=tuple(writer.entry() for writer in self._ngrams),
            files=files,
        )

    def _check_same(self, folder: Path) -> StoreManifest:
        manifest = read_manifest(folder)
        config = manifest.files.get(CONFIG_NAME)
        same = manifest.recipe == self._recipe and manifest.source == self._source.identity
        if not same or config is None or config.sha256 != _sha256(self._small_files[CONFIG_NAME]):
            raise BadInput(f"{folder} holds another store ({manifest.recipe}): choose another folder or remove it")
        (folder / JOURNAL_NAME).unlink(missing_ok=True)
        return manifest


def plan_resident(source: StoreSource) -> FilePlan:
    """`resident.safetensors`: widest dtypes first, so that every tensor is aligned, then by name."""
    tensors = sorted(source.resident.items(), key=lambda item: (-DTYPE_BYTES[item[1].dtype], item[0]))
    header = np.frombuffer(safetensors_header(tensors), np.uint8)
    spans = (
        (name, start, min(PIECE_BYTES, info.num_bytes - start))
        for name, info in tensors
        for start in range(0, info.num_bytes, PIECE_BYTES)
    )
    pieces = [Piece(num_bytes=len(header), make=lambda: header)]
    for group in _grouped(spans):
        pieces.append(Piece(num_bytes=sum(span[2] for span in group), make=partial(_read_spans, source, group)))
    return FilePlan(name=RESIDENT_NAME, head_bytes=0, pieces=tuple(pieces))


def _grouped(spans: Iterator[tuple[str, int, int]]) -> Iterator[list[tuple[str, int, int]]]:
    group: list[tuple[str, int, int]] = []
    for span in spans:
        if group and sum(one[2] for one in group) + span[2] > PIECE_BYTES:
            yield group
            group = []
        group.append(span)
    if group:
        yield group


def _read_spans(source: StoreSource, spans: list[tuple[str, int, int]]) -> np.ndarray:
    return np.concatenate([source.read_resident(*span) for span in spans])


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
