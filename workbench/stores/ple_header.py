"""The 4 KiB header block of a PLE page store (a format of this project, provisional).

Little-endian: magic `WFWBPLE1` @0; u32 version 1 @8; u32 header bytes 4096 @12; u32 layer @16; u32 codec @20; u32 row width
@24; u32 row bytes @28; u32 rows per page @32; u32 page bytes @36; u64 row count @40; u64 page count @48; u64 page offset @56;
SHA-256 of the source @64, of the pages @96, of the page table @128, and of the header with this last field zero @160; zeros to
4096.
The page table, one CRC-32 per page, follows the header; zeros fill the space up to the pages.
"""

import hashlib
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from workbench.errors import BadInput
from workbench.stores.ple_codecs import RowCodec, RowKind
from workbench.units import KIB, align_up

MAGIC = b"WFWBPLE1"
VERSION = 1
HEADER_BYTES = 4096
PAGE_SIZES = (4 * KIB, 16 * KIB)
MAX_LAYER = 4096
MAX_ROW_WIDTH = 8192

_HEADER = struct.Struct("<8s8I3Q32s32s32s32s3904s")


@dataclass(frozen=True, kw_only=True)
class PleHeader:
    """Header fields in file order."""

    magic: bytes = MAGIC
    version: int = VERSION
    header_bytes: int = HEADER_BYTES
    layer: int
    codec: int
    row_width: int
    row_bytes: int
    rows_per_page: int
    page_bytes: int
    num_rows: int
    num_pages: int
    page_offset: int
    source_sha256: bytes
    pages_sha256: bytes = bytes(32)
    table_sha256: bytes = bytes(32)
    header_sha256: bytes = bytes(32)
    reserved: bytes = bytes(3904)

    def to_bytes(self) -> bytes:
        """The 4096 bytes of the fields."""
        return _HEADER.pack(*vars(self).values())

    def signed(self) -> "PleHeader":
        """The same header with its own digest filled in."""
        return replace(self, header_sha256=self.own_digest)

    @property
    def own_digest(self) -> bytes:
        """SHA-256 of the header with its digest field zero."""
        return hashlib.sha256(replace(self, header_sha256=bytes(32)).to_bytes()).digest()

    @staticmethod
    def from_bytes(content: bytes) -> "PleHeader":
        """Fields of the first 4096 bytes."""
        values: dict[str, Any] = dict(zip(PleHeader.__dataclass_fields__, _HEADER.unpack(content), strict=True))
        return PleHeader(**values)

    @property
    def table_bytes(self) -> int:
        """Bytes of the page table."""
        return 4 * self.num_pages

    @property
    def file_bytes(self) -> int:
        """Bytes of the whole file."""
        return self.page_offset + self.num_pages * self.page_bytes


def lay_out(layer: int, codec: RowCodec, num_rows: int, page_bytes: int, source_sha256: bytes) -> PleHeader:
    """Header of a table that is still to be written. Raises BadInput when a page can't hold a row."""
    rows_per_page = page_bytes // codec.row_bytes
    if page_bytes not in PAGE_SIZES or rows_per_page == 0:
        raise BadInput(f"pages of {page_bytes} bytes for rows of {codec.row_bytes}: choose one of {PAGE_SIZES}")
    num_pages = -(-num_rows // rows_per_page)
    return PleHeader(
        layer=layer,
        codec=codec.kind,
        row_width=codec.row_width,
        row_bytes=codec.row_bytes,
        rows_per_page=rows_per_page,
        page_bytes=page_bytes,
        num_rows=num_rows,
        num_pages=num_pages,
        page_offset=align_up(HEADER_BYTES + 4 * num_pages, page_bytes),
        source_sha256=source_sha256,
    )


def check_ple_header(path: Path, header: PleHeader, file_bytes: int) -> RowCodec:
    """Refuses a header that is wrong by itself or that doesn't fit its file; returns the codec of its rows."""
    rules = (
        (header.magic == MAGIC, f"magic is {header.magic!r}, not {MAGIC!r}"),
        (header.version == VERSION, f"version {header.version}; this workbench reads {VERSION}"),
        (header.header_bytes == HEADER_BYTES, f"header of {header.header_bytes} bytes, must be {HEADER_BYTES}"),
        (header.layer < MAX_LAYER, f"layer {header.layer}, must be below {MAX_LAYER}"),
        (header.codec in list(RowKind), f"unknown codec {header.codec}"),
        (1 <= header.row_width <= MAX_ROW_WIDTH, f"rows of {header.row_width} values, must be 1..{MAX_ROW_WIDTH}"),
        (header.page_bytes in PAGE_SIZES, f"pages of {header.page_bytes} bytes, must be one of {PAGE_SIZES}"),
        (header.num_rows > 0, "no rows"),
        (not any(header.reserved), "reserved header bytes must be zero"),
    )
    _require(path, rules)
    codec = RowCodec(kind=RowKind(header.codec), row_width=header.row_width)
    if codec.row_bytes > header.page_bytes:
        raise ple_refusal(path, f"rows of {codec.row_bytes} bytes straddle pages of {header.page_bytes}")
    expected = lay_out(header.layer, codec, header.num_rows, header.page_bytes, header.source_sha256)
    for name in ("row_bytes", "rows_per_page", "num_pages", "page_offset", "file_bytes"):
        found = file_bytes if name == "file_bytes" else getattr(header, name)
        if found != getattr(expected, name):
            raise ple_refusal(path, f"{name} is {found}, its rows need {getattr(expected, name)}")
    if header.own_digest != header.header_sha256:
        raise ple_refusal(path, "header digest differs from the header")
    return codec


def ple_refusal(path: Path, problem: str) -> BadInput:
    """The error for a page store that breaks the format."""
    return BadInput(f"{path}: {problem} (damaged, or no PLE page store: copy or pack it again)")


def _require(path: Path, rules: tuple[tuple[bool, str], ...]) -> None:
    for holds, problem in rules:
        if not holds:
            raise ple_refusal(path, problem)
