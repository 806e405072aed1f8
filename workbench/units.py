"""Units: bytes are integers, binary and decimal prefixes are never mixed, times are int64 nanoseconds."""

import re
from fractions import Fraction

from workbench.errors import BadInput, shortened

KIB = 1024
MIB = 1024**2
GIB = 1024**3
KB = 10**3
MB = 10**6
GB = 10**9

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

PAGE_BYTES = 4096
"""Alignment of store layers, PLE pages and uncached reads (Linux on x86-64; the 16 KiB of macOS is a multiple)."""

_SUFFIXES = {"": 1, "B": 1, "KB": KB, "MB": MB, "GB": GB, "KIB": KIB, "MIB": MIB, "GIB": GIB, "K": KIB, "M": MIB, "G": GIB}
_SIZE = re.compile(r"\s*(\d{1,19}(?:\.\d{1,19})?)\s*([A-Za-z]*)\s*", re.ASCII)
_MOST_BYTES = 2**63
"""Sizes are int64."""


def parse_bytes(text: str | int) -> int:
    """Bytes of `"64MiB"`, `"1.5 GB"`, `"4096"` or an integer. Raises BadInput on anything else or on a negative size."""
    match = _SIZE.fullmatch(str(text))
    if match is not None and match[2].upper() in _SUFFIXES:
        size = Fraction(match[1]) * _SUFFIXES[match[2].upper()]
        if size < _MOST_BYTES and (size.denominator == 1 or match[2]):
            return int(size)
    raise BadInput(f"not a size: {shortened(repr(text))} (write e.g. 64MiB, 1.5GB or 4096)")


def format_bytes(num_bytes: float) -> str:
    """`num_bytes` with a binary prefix and four significant digits, e.g. `2.637 MiB`."""
    for suffix, size in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(num_bytes) >= size:
            return f"{num_bytes / size:.4g} {suffix}"
    return f"{num_bytes:.0f} B"


def align_down(value: int, alignment: int) -> int:
    """The largest multiple of `alignment` that is not above `value`."""
    return value - value % alignment


def align_up(value: int, alignment: int) -> int:
    """The smallest multiple of `alignment` that is not below `value`."""
    return -(-value // alignment) * alignment
