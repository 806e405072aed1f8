"""Finds one tensor in a GGUF file by its header alone.

The `gguf` package trusts its files: it builds every metadata array in memory, and a hostile length keeps it busy for
ever. This walk reads the same header with every length checked against the file first, and keeps nothing but the position.
"""

import os
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from workbench.errors import BadInput
from workbench.units import MIB, align_up

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY, _UINT32 = 8, 9, 4
_MAX_HEADER_BYTES = 256 * MIB
_MAX_ITEMS = 4_000_000
"""Strings, keys and tensors in one header; the largest vocabularies have 0.3 million."""
_MAX_NAME_BYTES = 65_535
_MAX_DIMS = 8
_MAX_NESTING = 4
_MAX_ALIGNMENT = 1 * MIB


@dataclass(frozen=True, kw_only=True)
class GgufTensor:
    """Position of a tensor, offsets from the start of the file."""

    shape: tuple[int, ...]
    ggml_type: int
    offset: int


class _Walk:
    """Reads a header front to back; raises BadInput rather than read past its end."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._left = min(os.fstat(file.fileno()).st_size, _MAX_HEADER_BYTES)
        self._items = 0

    def refuse(self, problem: str) -> BadInput:
        """The error for a damaged file."""
        return BadInput(f"{self._path}: damaged GGUF: {problem} (copy or convert it again)")

    @property
    def position(self) -> int:
        """Offset of the next byte."""
        return self._file.tell()

    def _spend(self, num_bytes: int) -> None:
        if num_bytes > self._left:
            raise self.refuse(f"its header runs past the end of the file or {_MAX_HEADER_BYTES} bytes")
        self._left -= num_bytes

    def take(self, num_bytes: int) -> bytes:
        """The next bytes."""
        self._spend(num_bytes)
        return self._file.read(num_bytes)

    def skip(self, num_bytes: int) -> None:
        """Passes over bytes."""
        self._spend(num_bytes)
        self._file.seek(num_bytes, os.SEEK_CUR)

    def name(self) -> bytes:
        """The next string, which must have the length of a name."""
        if (num_bytes := self.number("Q")) > _MAX_NAME_BYTES:
            raise self.refuse(f"a name of {num_bytes} bytes")
        return self.take(num_bytes)

    def number(self, layout: str) -> int:
        """The next integer, in `struct` notation."""
        value: int = struct.unpack("<" + layout, self.take(struct.calcsize(layout)))[0]
        return value

    def count(self, num_items: int) -> int:
        """Returns `num_items`. Raises BadInput once the header claims more items than any file has."""
        self._items += num_items
        if self._items > _MAX_ITEMS:
            raise self.refuse(f"more than {_MAX_ITEMS} keys, strings and tensors")
        return num_items

    def skip_value(self, kind: int, nesting: int = 0) -> None:
        """Passes over one metadata value."""
        if kind in _SCALAR_BYTES:
            self.skip(_SCALAR_BYTES[kind])
        elif kind == _STRING:
            self.skip(self.number("Q"))
        elif kind == _ARRAY and nesting < _MAX_NESTING:
            self._skip_array(nesting)
        else:
            raise self.refuse(f"metadata of unknown type {kind}")

    def _skip_array(self, nesting: int) -> None:
        kind, length = self.number("I"), self.number("Q")
        if kind in _SCALAR_BYTES:
            self.skip(_SCALAR_BYTES[kind] * length)
            return
        for _ in range(self.count(length)):
            self.skip_value(kind, nesting + 1)


def find_tensor(path: Path, name: str) -> GgufTensor:
    """Where tensor `name` starts. Raises BadInput when the file is damaged or has no such tensor."""
    with path.open("rb", buffering=MIB) as file:
        walk = _Walk(path, file)
        if walk.take(4) != MAGIC or walk.number("I") not in _VERSIONS:
            raise walk.refuse(f"not little-endian GGUF of version {_VERSIONS}")
        num_tensors, num_keys = walk.count(walk.number("Q")), walk.count(walk.number("Q"))
        alignment = _read_alignment(walk, num_keys)
        found = None
        for _ in range(num_tensors):
            found = _read_tensor(walk, name.encode()) or found
        if found is None:
            raise BadInput(f"{path}: this GGUF file has no tensor {name}: it embeds no store")
        if found.offset % alignment:
            raise walk.refuse(f"tensor {name} is not aligned to {alignment} bytes")
        return replace(found, offset=align_up(walk.position, alignment) + found.offset)


def _read_alignment(walk: _Walk, num_keys: int) -> int:
    alignment = 32
    for _ in range(num_keys):
        key, kind = walk.name(), walk.number("I")
        if key == b"general.alignment" and kind == _UINT32:
            alignment = walk.number("I")
        else:
            walk.skip_value(kind)
    if not 1 <= alignment <= _MAX_ALIGNMENT or alignment & (alignment - 1):
        raise walk.refuse(f"alignment {alignment} is no power of two up to {_MAX_ALIGNMENT}")
    return alignment


def _read_tensor(walk: _Walk, wanted: bytes) -> GgufTensor | None:
    name, num_dims = walk.name(), walk.number("I")
    if num_dims > _MAX_DIMS:
        raise walk.refuse(f"a tensor of {num_dims} dimensions")
    shape = tuple(walk.number("Q") for _ in range(num_dims))
    tensor = GgufTensor(shape=shape, ggml_type=walk.number("I"), offset=walk.number("Q"))
    return tensor if name == wanted else None
