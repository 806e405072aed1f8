"""safetensors files read in slices and written in pieces, so that memory stays bounded whatever their size.

(The `safetensors` package hands out whole tensors, or slices of them through a framework; pack needs raw bytes at offsets.)
"""

import json
import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from workbench.errors import BadInput
from workbench.stores.regions import Region
from workbench.units import MIB

DTYPE_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip
_MAX_HEADER_BYTES = 100 * MIB


@dataclass(frozen=True, kw_only=True)
class TensorInfo:
    """One tensor of a safetensors file."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Stored bytes."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]

    @property
    def row_bytes(self) -> int:
        """Stored bytes of one index of the first dimension."""
        return math.prod(self.shape[1:]) * DTYPE_BYTES[self.dtype]


class SafetensorsFile:
    """An open safetensors file; `tensors` describes its tensors, by name."""

    def __init__(self, path: Path) -> None:
        """Reads the header. Raises BadInput unless every tensor lies in the file and has the bytes of its shape."""
        self.path = path
        self._region = Region(path)
        header_bytes = struct.unpack("<Q", self._region.read(0, 8))[0]
        if header_bytes > _MAX_HEADER_BYTES:
            raise self._refusal(f"a header of {header_bytes} bytes")
        self._start = 8 + header_bytes
        try:
            header = json.loads(self._region.read(8, header_bytes))
        except (ValueError, RecursionError):
            raise self._refusal("its header is not JSON") from None
        if not isinstance(header, dict):
            raise self._refusal("its header is not a JSON object")
        self._offsets: dict[str, int] = {}
        self.tensors: dict[str, TensorInfo] = {}
        for name, entry in header.items():
            if name != "__metadata__":
                self._add(name, entry)

    def _refusal(self, problem: str) -> BadInput:
        return BadInput(f"{self.path}: not a sound safetensors file: {problem} (copy it again)")

    def _add(self, name: str, entry: Any) -> None:
        try:
            info = TensorInfo(dtype=str(entry["dtype"]), shape=tuple(entry["shape"]))
            start, end = entry["data_offsets"]
            sizes_are_integers = all(type(size) is int and size >= 0 for size in (*info.shape, start, end))
        except (KeyError, TypeError, ValueError):
            raise self._refusal(f"tensor {name!r} is not described") from None
        if info.dtype not in DTYPE_BYTES or not sizes_are_integers:
            raise self._refusal(f"tensor {name!r} has dtype {info.dtype!r} and shape {info.shape}")
        if end - start != info.num_bytes or self._start + end > self._region.num_bytes:
            raise self._refusal(f"tensor {name!r} of shape {info.shape} doesn't fit its bytes {start}..{end}")
        self.tensors[name] = info
        self._offsets[name] = start

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole file."""
        return self._region.num_bytes

    def read(self, name: str, offset: int, num_bytes: int) -> np.ndarray:
        """Bytes of a tensor from `offset` on, uint8."""
        return np.frombuffer(self._region.read(self._start + self._offsets[name] + offset, num_bytes), np.uint8)

    def close(self) -> None:
        """Closes the file."""
        self._region.close()


def safetensors_header(tensors: Iterable[tuple[str, TensorInfo]]) -> bytes:
    """Length and JSON header of a file that holds these tensors one after the other."""
    entries: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
    offset = 0
    for name, info in tensors:
        end = offset + info.num_bytes
        entries[name] = {"dtype": info.dtype, "shape": list(info.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    return struct.pack("<Q", len(text)) + text
