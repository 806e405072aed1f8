"""Every way to break a page store ends in one line and exit status 2, through the real command line."""

import hashlib
import struct
import zlib

import pytest

FIELDS = {
    "magic": ("I", 0), "version": ("I", 8), "header_bytes": ("I", 12), "layer": ("I", 16), "codec": ("I", 20),
    "row_width": ("I", 24), "row_bytes": ("I", 28), "rows_per_page": ("I", 32), "page_bytes": ("I", 36), "num_rows": ("Q", 40),
    "num_pages": ("Q", 48), "page_offset": ("Q", 56), "pages_sha256": ("Q", 96), "table_sha256": ("Q", 128),
    "reserved": ("I", 4092),
}  # fmt: skip
CASES = [
    ("magic", 0, "magic is"),
    ("version", 2, "version 2"),
    ("header_bytes", 8192, "header of 8192"),
    ("layer", 4096, "layer 4096"),
    ("codec", 2, "unknown codec 2"),
    ("codec", 0, "row_bytes is 20"),
    ("row_width", 0, "rows of 0 values"),
    ("row_width", 33, "multiple of 32"),
    ("row_width", 64, "row_bytes is 20"),
    ("row_width", 2**32 - 32, "rows of"),
    ("row_bytes", 24, "row_bytes is 24"),
    ("rows_per_page", 205, "rows_per_page is 205"),
    ("rows_per_page", 0, "rows_per_page is 0"),
    ("page_bytes", 0, "pages of 0"),
    ("page_bytes", 16_384, "rows_per_page is 204"),
    ("num_rows", 0, "no rows"),
    ("num_rows", 2**63, "num_pages is"),
    ("num_pages", 2**63 - 1, "num_pages is"),
    ("page_offset", 4096, "page_offset is 4096"),
    ("page_offset", 2**63 - 4096, "page_offset is"),
    ("pages_sha256", 0, "digest of the pages"),
    ("table_sha256", 0, "page table digest"),
    ("reserved", 1, "reserved header bytes"),
]


def sign_again(path, patch):
    """Makes the header digest right, so that only the field itself can be refused."""
    header = bytearray(path.read_bytes()[:4096])
    header[160:192] = bytes(32)
    patch(path, 160, hashlib.sha256(header).digest())


@pytest.mark.parametrize(("field", "value", "says"), CASES)
def test_each_header_field(refused, patch, tiny_store, field, value, says):
    layout, offset = FIELDS[field]
    path = tiny_store / "ngrams.1.ple"
    patch(path, offset, struct.pack("<" + layout, value))
    sign_again(path, patch)
    refused(path, says)


@pytest.mark.parametrize(
    ("offset", "says"),
    [
        (64, "header digest differs"),
        (161, "header digest differs"),
        (4096, "page table digest"),
        (4096 + 4 * 5, "must be zero"),
        (8192 + 3, "page 0: checksum"),
        (4 * 4096 + 4095, "page 2: checksum"),
    ],
)
def test_unsigned_changes(refused, patch, tiny_store, offset, says):
    path = tiny_store / "ngrams.1.ple"
    patch(path, offset, bytes([path.read_bytes()[offset] ^ 0x5A]))
    refused(path, says)


@pytest.mark.parametrize("page", [0, 4])
def test_bytes_behind_the_rows(refused, patch, tiny_store, page):
    """Behind the rows of a full page, and behind the last row: not zero, though every checksum is right."""
    path = tiny_store / "ngrams.1.ple"
    content = bytearray(path.read_bytes())
    start = 8192 + page * 4096
    content[start + 4095] = 1
    content[4096 + 4 * page : 4100 + 4 * page] = struct.pack("<I", zlib.crc32(content[start : start + 4096]))
    content[96:128] = hashlib.sha256(content[8192:]).digest()
    content[128:160] = hashlib.sha256(content[4096 : 4096 + 4 * 5]).digest()
    path.write_bytes(content)
    sign_again(path, patch)
    refused(path, f"page {page}: bytes behind its rows")


@pytest.mark.parametrize("num_bytes", [0, 100, 4096, 10_000, -1])
def test_truncation(refused, tiny_store, num_bytes):
    path = tiny_store / "ngrams.1.ple"
    path.write_bytes(path.read_bytes()[:num_bytes])
    refused(path, "file_bytes is" if num_bytes not in (0, 100) else "truncated")


def test_bytes_behind_the_end(refused, tiny_store):
    path = tiny_store / "ngrams.1.ple"
    path.write_bytes(path.read_bytes() + bytes(4096))
    refused(path, "file_bytes is")
