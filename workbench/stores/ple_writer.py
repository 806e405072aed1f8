"""Plans `ngrams.L.ple` from a source of weights."""

import hashlib
import zlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from workbench.stores.manifest import NgramEntry, ngrams_name
from workbench.stores.ple_codecs import AFFINE_ROWS, RowCodec, RowKind
from workbench.stores.ple_header import PleHeader, lay_out
from workbench.stores.source import StoreSource
from workbench.stores.workspace import PIECE_BYTES, FilePlan, Piece


class PleWriter:
    """Plans the pages of one layer's table; no row spans two pages."""

    def __init__(self, source: StoreSource, layer: int, codec: RowCodec, page_bytes: int) -> None:
        """Raises BadInput when a page can't hold a row."""
        geometry = source.geometry
        num_rows = geometry.ple_num_rows(geometry.ple_layers.index(layer))
        self._source = source
        self._codec = codec
        self._layout = lay_out(layer, codec, num_rows, page_bytes, bytes.fromhex(source.identity.sha256))
        self._checksums: list[int] = []
        self.plan = FilePlan(
            name=ngrams_name(layer),
            head_bytes=self._layout.page_offset,
            pieces=tuple(self._pieces()),
            make_head=self._head,
        )

    def _pieces(self) -> Iterator[Piece]:
        layout = self._layout
        step = PIECE_BYTES // layout.page_bytes
        for first in range(0, layout.num_pages, step):
            num_pages = min(step, layout.num_pages - first)
            yield Piece(
                num_bytes=num_pages * layout.page_bytes, make=partial(self._make, first, num_pages), observe=self._observe
            )

    def _make(self, first: int, num_pages: int) -> np.ndarray:
        layout = self._layout
        start = first * layout.rows_per_page
        stop = min(start + num_pages * layout.rows_per_page, layout.num_rows)
        rows = np.zeros((num_pages * layout.rows_per_page, layout.row_bytes), np.uint8)
        rows[: stop - start] = self._encode(start, stop)
        pages = np.zeros((num_pages, layout.page_bytes), np.uint8)
        pages[:, : layout.rows_per_page * layout.row_bytes] = rows.reshape(num_pages, -1)
        return pages.reshape(-1)

    def _encode(self, start: int, stop: int) -> np.ndarray:
        if self._codec.kind is RowKind.BF16:
            return self._source.ngram_rows(self._layout.layer, start, stop).view(np.uint8)
        return self._codec.join(*self._source.ngram_matrices(self._layout.layer, AFFINE_ROWS, start, stop))

    def _observe(self, content: np.ndarray) -> None:
        self._checksums.extend(zlib.crc32(page.data) for page in content.reshape(-1, self._layout.page_bytes))

    def header(self, pages_sha256: bytes) -> PleHeader:
        """The signed header, once all pages are written."""
        table = np.array(self._checksums, "<u4").tobytes()
        return replace(self._layout, pages_sha256=pages_sha256, table_sha256=hashlib.sha256(table).digest()).signed()

    def _head(self, pages_sha256: bytes) -> bytes:
        head = self.header(pages_sha256).to_bytes() + np.array(self._checksums, "<u4").tobytes()
        return head.ljust(self._layout.page_offset, b"\0")

    def entry(self) -> NgramEntry:
        """The manifest's entry for this table."""
        layout = self._layout
        kind = self._codec.kind.name.lower()
        return NgramEntry(layer=layout.layer, codec=kind, page_bytes=layout.page_bytes, num_rows=layout.num_rows)
