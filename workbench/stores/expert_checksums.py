"""`experts.crc`: a CRC-32 for each component of each record, bound to one payload digest, so that each read can be verified.

Header of 128 bytes, little-endian: magic `WFWBCRC1` @0; u32 version 1 @8; u32 header bytes @12; u32 layers @16; u32 experts @20;
u32 components @24; zeros @28; payload SHA-256 of the store @32; SHA-256 of the table @64; zeros. Then u32 values, layer by layer,
expert by expert, gate, up, down.
"""

import hashlib
import struct
import zlib
from pathlib import Path

import numpy as np

from workbench.errors import BadInput
from workbench.geometry import COMPONENTS
from workbench.stores.expert_header import LayerDescriptor
from workbench.stores.regions import Region

_MAGIC = b"WFWBCRC1"
_VERSION = 1
_HEADER_BYTES = 128
_HEADER = struct.Struct("<8s5I4x32s32s32x")


class ChecksumBuilder:
    """Collects the checksums of records while they are written."""

    def __init__(self, layer: LayerDescriptor) -> None:
        self._bounds = [(part.offset, part.offset + part.num_bytes) for part in layer.components]
        self._values: list[int] = []

    def add(self, records: np.ndarray) -> None:
        """Adds records, uint8 `[n, record bytes]`, in the order of the store."""
        for record in records:
            self._values.extend(zlib.crc32(record[start:end].data) for start, end in self._bounds)

    def to_bytes(self, num_layers: int, payload_sha256: bytes) -> bytes:
        """The whole file."""
        table = np.array(self._values, "<u4").tobytes()
        num_experts = len(self._values) // (num_layers * len(COMPONENTS))
        digest = hashlib.sha256(table).digest()
        shape = (num_layers, num_experts, len(COMPONENTS))
        return _HEADER.pack(_MAGIC, _VERSION, _HEADER_BYTES, *shape, payload_sha256, digest) + table


def read_checksums(path: Path, shape: tuple[int, int], payload_sha256: bytes) -> np.ndarray:
    """`[layers, experts, components]` uint32. Raises BadInput when the file is damaged or belongs to another store."""
    layers, experts = shape
    num_bytes = layers * experts * len(COMPONENTS) * 4
    with Region(path) as region:
        header = region.read(0, _HEADER_BYTES)
        magic, version, header_bytes, *counts, payload, digest = _HEADER.unpack(header)
        if (magic, version, header_bytes) != (_MAGIC, _VERSION, _HEADER_BYTES):
            raise BadInput(f"{path}: not a checksum file of version {_VERSION}: pack the store again")
        if header != _HEADER.pack(magic, version, header_bytes, *counts, payload, digest):
            raise BadInput(f"{path}: reserved bytes must be zero: pack the store again")
        if payload != payload_sha256:
            raise BadInput(f"{path}: belongs to another payload ({payload.hex()[:12]}...): remove it or pack the store again")
        if (*counts, region.num_bytes) != (layers, experts, len(COMPONENTS), _HEADER_BYTES + num_bytes):
            raise BadInput(f"{path}: {counts} checksums in {region.num_bytes} bytes, the store has {[layers, experts, 3]}")
        table = region.read(_HEADER_BYTES, num_bytes)
    if hashlib.sha256(table).digest() != digest:
        raise BadInput(f"{path}: damaged: its digest differs from its header's: pack the store again")
    return np.frombuffer(table, "<u4").reshape(layers, experts, len(COMPONENTS))
