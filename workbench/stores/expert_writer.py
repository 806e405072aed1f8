"""Plans `experts.em2` and its checksums from a source of weights."""

from collections.abc import Iterator
from functools import partial

import numpy as np

from workbench.errors import BadInput
from workbench.geometry import GATE, Codec
from workbench.stores.codecs import interleave_groups
from workbench.stores.expert_checks import MAX_EXPERTS_QWEN4EXP
from workbench.stores.expert_checksums import ChecksumBuilder
from workbench.stores.expert_header import (
    AFFINE_INTERLEAVED,
    DESCRIPTOR_BYTES,
    HEADER_BYTES,
    ExpertHeader,
    LayerDescriptor,
    describe_layers,
    manifest_digest,
    sign,
)
from workbench.stores.manifest import EXPERTS_NAME, ExpertEntry
from workbench.stores.source import Matrices, StoreSource
from workbench.stores.workspace import PIECE_BYTES, FilePlan, Piece
from workbench.units import PAGE_BYTES, align_up

_INTERLEAVED_CODEC = Codec(bits=4, group_size=64)


class ExpertWriter:
    """Plans the records of all layers: a piece holds whole experts of one layer, the last piece of a layer its padding too."""

    def __init__(self, source: StoreSource, storage_format: int) -> None:
        """Raises BadInput when the format can't hold this source."""
        geometry = source.geometry
        if storage_format == AFFINE_INTERLEAVED and geometry.codec != _INTERLEAVED_CODEC:
            raise BadInput(f"format 1 is 4-bit in groups of 64; these experts are {geometry.codec}: use format 2")
        if geometry.num_experts > MAX_EXPERTS_QWEN4EXP:
            raise BadInput(f"{geometry.num_experts} experts per layer; the format holds at most {MAX_EXPERTS_QWEN4EXP}")
        if odd := [size for size in geometry.component_shape(GATE) if size % geometry.codec.group_size]:
            raise BadInput(
                f"experts of size {odd[0]} can't be in groups of {geometry.codec.group_size}: choose a smaller group size"
            )
        self._source = source
        self._format = storage_format
        self.layers = describe_layers(geometry, source.expert_layers, storage_format)
        self._checksums = ChecksumBuilder(self.layers[0])
        self.plan = FilePlan(
            name=EXPERTS_NAME,
            head_bytes=self.layers[0].offset,
            pieces=tuple(piece for layer in self.layers for piece in self._pieces(layer)),
            make_head=self._head,
        )

    def _pieces(self, layer: LayerDescriptor) -> Iterator[Piece]:
        step = max(1, PIECE_BYTES // layer.record_bytes)
        for first in range(0, layer.num_experts, step):
            stop = min(first + step, layer.num_experts)
            num_records = stop - first
            num_bytes = num_records * layer.record_bytes
            if stop == layer.num_experts:
                num_bytes += align_up(layer.end, PAGE_BYTES) - layer.end
            yield Piece(
                num_bytes=num_bytes,
                make=partial(self._make, layer, first, stop, num_bytes),
                observe=partial(self._observe, num_records, layer.record_bytes),
            )

    def _make(self, layer: LayerDescriptor, first: int, stop: int, num_bytes: int) -> np.ndarray:
        content = np.zeros(num_bytes, np.uint8)
        records = content[: (stop - first) * layer.record_bytes].reshape(stop - first, -1)
        for part in layer.components:
            matrices = self._source.component(layer.layer, part.name, first, stop)
            self._place(records[:, part.offset : part.offset + part.num_bytes], matrices)
        return content

    def _place(self, target: np.ndarray, matrices: Matrices) -> None:
        num_records, start = len(target), 0
        parts = (interleave_groups(*matrices),) if self._format == AFFINE_INTERLEAVED else matrices
        for part in parts:
            flat = part.reshape(num_records, -1).view(np.uint8)
            target[:, start : start + flat.shape[1]] = flat
            start += flat.shape[1]

    def _observe(self, num_records: int, record_bytes: int, content: np.ndarray) -> None:
        self._checksums.add(content[: num_records * record_bytes].reshape(num_records, record_bytes))

    def _head(self, payload_sha256: bytes) -> bytes:
        geometry, identity = self._source.geometry, self._source.identity
        store_bytes = self.plan.num_bytes
        header = ExpertHeader(
            experts_used=geometry.num_experts_per_tok,
            num_layers=len(self.layers),
            num_experts=geometry.num_experts,
            num_source_tensors=identity.num_tensors,
            num_descriptors=len(self.layers),
            descriptor_bytes=len(self.layers) * DESCRIPTOR_BYTES,
            data_offset=self.plan.head_bytes,
            data_bytes=store_bytes - self.plan.head_bytes,
            store_bytes=store_bytes,
            source_bytes=identity.num_bytes,
            source_sha256=bytes.fromhex(identity.sha256),
            payload_sha256=payload_sha256,
            storage_format=self._format,
            group_size=geometry.codec.group_size,
        )
        return sign(header, self.layers)

    def checksums(self, payload_sha256: bytes) -> bytes:
        """Content of `experts.crc`, once all pieces are written."""
        return self._checksums.to_bytes(len(self.layers), payload_sha256)

    def header_sha256(self, payload_sha256: bytes) -> str:
        """Digest in the header, in hex."""
        head = self._head(payload_sha256)
        end = HEADER_BYTES + len(self.layers) * DESCRIPTOR_BYTES
        return manifest_digest(head[:HEADER_BYTES], head[HEADER_BYTES:end]).hex()

    def entry(self, payload_sha256: bytes) -> ExpertEntry:
        """The manifest's entry for the experts."""
        codec = self._source.geometry.codec
        return ExpertEntry(
            storage_format=self._format,
            bits=codec.bits,
            group_size=codec.group_size,
            layers=tuple(layer.layer for layer in self.layers),
            payload_sha256=payload_sha256.hex(),
        )
