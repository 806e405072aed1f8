"""The n-gram rows of one PLE layer in pages that start at multiples of their size.

Logical rows, physical pages, checksums and the codec are kept apart: `locate` maps rows to pages, `page` says where a page
lies, `page_crc32` verifies one that was read, `decode` turns rows of pages in memory into float32.
"""

import hashlib
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from workbench.stores.extents import Extent
from workbench.stores.ple_codecs import RowCodec
from workbench.stores.ple_header import HEADER_BYTES, PleHeader, check_ple_header, ple_refusal
from workbench.stores.regions import Region


class PleStore:
    """Positions of every row of one PLE layer. Made by `open`."""

    def __init__(self, path: Path, header: PleHeader, codec: RowCodec, checksums: np.ndarray) -> None:
        self.path = path
        self.header = header
        self.codec = codec
        self._checksums = checksums

    @classmethod
    def open(cls, path: Path) -> "PleStore":
        """Reads header and page table. Raises BadInput on the first damage or inconsistency; no page is read."""
        with Region(path) as region:
            header = PleHeader.from_bytes(region.read(0, HEADER_BYTES))
            codec = check_ple_header(path, header, region.num_bytes)
            table_end = HEADER_BYTES + header.table_bytes
            table = _read_table(region, header)
            region.check_zero(table_end, header.page_offset, f"padding at {table_end}")
        return cls(path, header, codec, table)

    @property
    def digest(self) -> str:
        """SHA-256 of the header, which binds pages and page table; in hex."""
        return self.header.header_sha256.hex()

    @property
    def layer(self) -> int:
        """Zero-based index of the layer that reads these rows."""
        return self.header.layer

    @property
    def num_rows(self) -> int:
        """Rows of the table."""
        return self.header.num_rows

    @property
    def num_pages(self) -> int:
        """Pages of the table."""
        return self.header.num_pages

    @property
    def row_width(self) -> int:
        """Values in a row."""
        return self.header.row_width

    @property
    def row_bytes(self) -> int:
        """Stored bytes of a row."""
        return self.header.row_bytes

    @property
    def rows_per_page(self) -> int:
        """Rows in a page."""
        return self.header.rows_per_page

    @property
    def page_bytes(self) -> int:
        """Bytes of a page."""
        return self.header.page_bytes

    def locate(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Page number and place within the page of each row id (int64, any shape)."""
        pages, slots = np.divmod(rows, self.rows_per_page)
        return pages, slots

    def page(self, page: int) -> Extent:
        """Bytes of one page."""
        if not 0 <= page < self.num_pages:
            raise IndexError(f"page {page} of {self.num_pages}")
        return Extent(offset=self.header.page_offset + page * self.page_bytes, num_bytes=self.page_bytes)

    def page_crc32(self, page: int) -> int:
        """CRC-32 of one page."""
        return int(self._checksums[page])

    def decode(self, pages: np.ndarray, page_index: np.ndarray, slot: np.ndarray) -> np.ndarray:
        """Rows as float32 `[len(slot), row width]`.

        Args:
            pages: `[n, page bytes]` uint8, whole pages in any order; rows may have a stride.
            page_index: which of these pages each row lies in.
            slot: the row's place within it, as `locate` returned it.
        """
        used = pages[:, : self.rows_per_page * self.row_bytes]
        rows = np.lib.stride_tricks.as_strided(
            used,
            (len(pages), self.rows_per_page, self.row_bytes),
            (pages.strides[0], self.row_bytes * pages.strides[1], pages.strides[1]),
            writeable=False,
        )
        return self.codec.decode(np.ascontiguousarray(rows[page_index, slot]))

    def verify(self, advance: Callable[[int], None] = lambda num_bytes: None) -> None:
        """Reads every page; raises BadInput unless all checksums, the digest and the unused bytes hold."""
        digest, used, left = hashlib.sha256(), self.rows_per_page * self.row_bytes, self.num_rows
        with Region(self.path) as region:
            for page in range(self.num_pages):
                content = region.read(self.page(page).offset, self.page_bytes)
                digest.update(content)
                if zlib.crc32(content) != self.page_crc32(page):
                    raise ple_refusal(self.path, f"page {page}: checksum differs from the page table's")
                if any(content[min(used, left * self.row_bytes) :]):
                    raise ple_refusal(self.path, f"page {page}: bytes behind its rows must be zero")
                left -= self.rows_per_page
                advance(self.page_bytes)
        if digest.digest() != self.header.pages_sha256:
            raise ple_refusal(self.path, "digest of the pages differs from the header's")


def _read_table(region: Region, header: PleHeader) -> np.ndarray:
    table, filled, digest = np.empty(header.num_pages, "<u4"), 0, hashlib.sha256()
    for chunk in region.chunks(HEADER_BYTES, HEADER_BYTES + header.table_bytes):
        digest.update(chunk)
        table[filled : filled + len(chunk) // 4] = np.frombuffer(chunk, "<u4")
        filled += len(chunk) // 4
    if digest.digest() != header.table_sha256:
        raise ple_refusal(region.path, "page table digest differs from the header's")
    return table
