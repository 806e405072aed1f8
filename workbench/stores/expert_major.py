"""ExpertMajor v2: the routed experts of a model, one record per expert, in one file.

`ExpertStore.open` reads header and descriptors of a bare `.em2` file or of a GGUF file that embeds one, refuses inconsistent
ones, and then gives the extent of any record or component. It reads no record: readers do.
"""

import hashlib
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from workbench.errors import BadInput
from workbench.geometry import COMPONENTS, Codec, Geometry
from workbench.stores.expert_checks import check_geometry, check_header, check_layers, common_codec, refusal
from workbench.stores.expert_checksums import read_checksums
from workbench.stores.expert_header import (
    DESCRIPTOR_BYTES,
    GGML_TYPE_I8,
    HEADER_BYTES,
    MAGIC,
    ExpertHeader,
    LayerDescriptor,
    manifest_digest,
)
from workbench.stores.extents import Extent
from workbench.stores.gguf_index import MAGIC as GGUF_MAGIC
from workbench.stores.gguf_index import find_tensor
from workbench.stores.regions import Region

EMBEDDED_TENSOR = "ds4.expert_major.v2"
CHECKSUM_SUFFIX = ".crc"


class ExpertStore:
    """Extents of every record of a model, as absolute file offsets. Made by `open`."""

    def __init__(self, path: Path, start: int, header: ExpertHeader, layers: tuple[LayerDescriptor, ...]) -> None:
        self.path = path
        self.header = header
        self.layers = layers
        self.codec: Codec | None = None
        """Affine codec of the records; None for GGML blocks."""
        self._start = start
        self._by_index = {layer.layer: position for position, layer in enumerate(layers)}
        self._checksums: np.ndarray | None = None

    @classmethod
    def open(cls, path: Path, *, geometry: Geometry | None = None, verify_digest: bool = False) -> "ExpertStore":
        """Opens a store and the `.crc` file beside it, if there is one. Raises BadInput on the first damage or inconsistency.

        Args:
            path: a bare store, or a GGUF file with the tensor `ds4.expert_major.v2`.
            geometry: the model that the store must belong to.
            verify_digest: also read the whole payload and compare its digest and checksums.
        """
        path = Path(path)
        with Region(path) as region:
            _enter_store(region)
            header = ExpertHeader.from_bytes(region.read(0, HEADER_BYTES))
            check_header(path, header, region.num_bytes)
            layers = _read_layers(region, header)
            store = cls(path, region.start, header, layers)
            store.codec = common_codec(path, header, layers)
            if geometry is not None:
                check_geometry(path, header, layers, store.codec, geometry)
            checksum_path = path.with_suffix(CHECKSUM_SUFFIX)
            if checksum_path.exists() or checksum_path.is_symlink():
                store._checksums = read_checksums(checksum_path, (len(layers), header.num_experts), header.payload_sha256)
        if verify_digest:
            store.verify()
        return store

    @property
    def digest(self) -> str:
        """SHA-256 of the payload, in hex: the identity of the store."""
        return self.header.payload_sha256.hex()

    @property
    def header_digest(self) -> str:
        """SHA-256 of header and descriptors, in hex; it binds the payload digest too."""
        return self.header.manifest_sha256.hex()

    @property
    def storage_format(self) -> int:
        """0 GGML blocks, 1 affine interleaved, 2 affine planar."""
        return self.header.storage_format

    @property
    def num_experts(self) -> int:
        """Records of one layer."""
        return self.header.num_experts

    @property
    def has_checksums(self) -> bool:
        """Whether an `experts.crc` lies beside the store."""
        return self._checksums is not None

    def _layer(self, layer: int) -> LayerDescriptor:
        return self.layers[self._by_index[layer]]

    def record(self, layer: int, expert: int) -> Extent:
        """All bytes of one expert."""
        descriptor = self._layer(layer)
        if not 0 <= expert < descriptor.num_experts:
            raise IndexError(f"expert {expert} of {descriptor.num_experts}")
        offset = self._start + descriptor.offset + expert * descriptor.record_bytes
        return Extent(offset=offset, num_bytes=descriptor.record_bytes)

    def component_in_record(self, layer: int, component: str) -> Extent:
        """Offset within the record and length of `gate`, `up` or `down`."""
        part = self._layer(layer).components[COMPONENTS.index(component)]
        return Extent(offset=part.offset, num_bytes=part.num_bytes)

    def component(self, layer: int, expert: int, component: str) -> Extent:
        """Bytes of `gate`, `up` or `down` of one expert."""
        record, part = self.record(layer, expert), self.component_in_record(layer, component)
        return Extent(offset=record.offset + part.offset, num_bytes=part.num_bytes)

    def crc32(self, layer: int, expert: int, component: str) -> int | None:
        """CRC-32 of one component; None when the store has no `experts.crc`."""
        if self._checksums is None:
            return None
        return int(self._checksums[self._by_index[layer], expert, COMPONENTS.index(component)])

    def verify(self, advance: Callable[[int], None] = lambda num_bytes: None) -> None:
        """Reads the whole payload; raises BadInput unless its digest and every checksum hold. `advance` gets the bytes read."""
        digest, ends = hashlib.sha256(), [*(layer.offset for layer in self.layers[1:]), self.header.store_bytes]
        with Region(self.path) as region:
            region.narrow(self._start, self.header.store_bytes)
            for layer, end in zip(self.layers, ends, strict=True):
                for expert in range(layer.num_experts):
                    for component in COMPONENTS:
                        self._verify_component(region, digest, layer.layer, expert, component)
                digest.update(region.read(layer.end, end - layer.end))
                advance(end - layer.offset)
        if digest.digest() != self.header.payload_sha256:
            raise refusal(self.path, "payload digest differs from the header's")

    def _verify_component(self, region: Region, digest: Any, layer: int, expert: int, component: str) -> None:
        extent, checksum = self.component(layer, expert, component), 0
        for chunk in region.chunks(extent.offset - self._start, extent.end - self._start):
            digest.update(chunk)
            checksum = zlib.crc32(chunk, checksum)
        if self._checksums is not None and checksum != self.crc32(layer, expert, component):
            raise refusal(self.path, f"layer {layer}, expert {expert}, {component}: checksum differs from experts.crc's")


def _enter_store(region: Region) -> None:
    magic = region.read(0, len(MAGIC)) if region.num_bytes >= len(MAGIC) else b""
    if magic == MAGIC:
        return
    if not magic.startswith(GGUF_MAGIC):
        raise BadInput(f"{region.path}: neither an ExpertMajor v2 store nor a GGUF file that embeds one")
    tensor = find_tensor(region.path, EMBEDDED_TENSOR)
    if tensor.ggml_type != GGML_TYPE_I8 or len(tensor.shape) != 1:
        raise BadInput(f"{region.path}: tensor {EMBEDDED_TENSOR} must be one row of I8")
    if tensor.offset + tensor.shape[0] > region.num_bytes:
        raise BadInput(f"{region.path}: truncated: tensor {EMBEDDED_TENSOR} ends behind the file")
    region.narrow(tensor.offset, tensor.shape[0])


def _read_layers(region: Region, header: ExpertHeader) -> tuple[LayerDescriptor, ...]:
    content = region.read(HEADER_BYTES, header.descriptor_bytes)
    if manifest_digest(header.to_bytes(), content) != header.manifest_sha256:
        raise refusal(region.path, "manifest digest differs from header and descriptors")
    starts = range(0, len(content), DESCRIPTOR_BYTES)
    layers = tuple(LayerDescriptor.from_bytes(content[start : start + DESCRIPTOR_BYTES]) for start in starts)
    check_layers(region.path, header, layers)
    ends = [HEADER_BYTES + header.descriptor_bytes, *(layer.end for layer in layers)]
    for end, start in zip(ends, [*(layer.offset for layer in layers), header.store_bytes], strict=True):
        region.check_zero(end, start, f"padding at {end}")
    return layers
