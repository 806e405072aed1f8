"""Header and descriptors of an ExpertMajor v2 store as records: bytes in, fields out, and back.

Nothing is checked here: `expert_checks` checks whether the fields are consistent.
"""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workbench.geometry import COMPONENTS, Codec, Geometry
from workbench.units import PAGE_BYTES, align_up

MAGIC = b"DS4EXPV2"
VERSION = 2
HEADER_BYTES = 256
DESCRIPTOR_BYTES = 224

FAMILIES = {1: "deepseek4", 2: "glm-dsa", 3: "qwen35moe", 4: "qwen4exp"}
FAMILY_QWEN4EXP = 4

GGML_BLOCKS, AFFINE_INTERLEAVED, AFFINE_PLANAR = 0, 1, 2
"""Storage formats: GGML blocks, MLX affine 4-bit in 36-byte groups, MLX affine as `mx.quantize` returns it."""

GGML_TYPE_Q4_K, GGML_TYPE_I8 = 12, 24
INTERLEAVED_BLOCK_ELEMENTS = 256

_HEADER = struct.Struct("<8s6I8Q32s32s2I32s56s")
_LAYER = struct.Struct("<2I3Q")
_COMPONENT = struct.Struct("<4I5Q")
_MANIFEST_DIGEST = slice(168, 200)


@dataclass(frozen=True, kw_only=True)
class ComponentDescriptor:
    """Gate, up or down of every record of a layer."""

    role: int
    ggml_type: int
    num_dims: int
    block_elements: int
    input_size: int
    output_size: int
    num_experts: int
    num_bytes: int
    """Bytes of one expert."""
    offset: int
    """Offset within the record."""

    @property
    def name(self) -> str:
        """`gate`, `up` or `down`."""
        return COMPONENTS[self.role]

    def to_bytes(self) -> bytes:
        """The 56 bytes of this component in its layer's descriptor."""
        return _COMPONENT.pack(*vars(self).values())


@dataclass(frozen=True, kw_only=True)
class LayerDescriptor:
    """Records of one layer, back to back."""

    layer: int
    num_experts: int
    record_bytes: int
    offset: int
    """Offset of the first record from the start of the store."""
    num_bytes: int
    components: tuple[ComponentDescriptor, ...]
    reserved: bytes = bytes(DESCRIPTOR_BYTES - _LAYER.size - 3 * _COMPONENT.size)

    @property
    def end(self) -> int:
        """Offset behind the last record from the start of the store."""
        return self.offset + self.num_bytes

    def to_bytes(self) -> bytes:
        """The 224 bytes of this layer's descriptor."""
        fields = _LAYER.pack(self.layer, self.num_experts, self.record_bytes, self.offset, self.num_bytes)
        return fields + b"".join(component.to_bytes() for component in self.components) + self.reserved

    @staticmethod
    def from_bytes(content: bytes) -> "LayerDescriptor":
        """Fields of one 224-byte descriptor."""
        layer, num_experts, record_bytes, offset, num_bytes = _LAYER.unpack_from(content)
        names = list(ComponentDescriptor.__dataclass_fields__)
        starts = range(_LAYER.size, _LAYER.size + 3 * _COMPONENT.size, _COMPONENT.size)
        return LayerDescriptor(
            layer=layer,
            num_experts=num_experts,
            record_bytes=record_bytes,
            offset=offset,
            num_bytes=num_bytes,
            components=tuple(
                ComponentDescriptor(**dict(zip(names, _COMPONENT.unpack_from(content, start), strict=True))) for start in starts
            ),
            reserved=content[_LAYER.size + 3 * _COMPONENT.size :],
        )


@dataclass(frozen=True, kw_only=True)
class ExpertHeader:
    """The first 256 bytes of a store, field by field in file order."""

    magic: bytes = MAGIC
    version: int = VERSION
    header_bytes: int = HEADER_BYTES
    family: int = FAMILY_QWEN4EXP
    experts_used: int
    num_layers: int
    num_experts: int
    num_source_tensors: int
    num_descriptors: int
    descriptor_bytes: int
    descriptor_offset: int = HEADER_BYTES
    data_offset: int
    data_bytes: int
    store_bytes: int
    source_bytes: int
    source_sha256: bytes
    payload_sha256: bytes
    storage_format: int
    group_size: int
    manifest_sha256: bytes = bytes(32)
    reserved: bytes = bytes(56)

    def to_bytes(self) -> bytes:
        """The 256 bytes of the fields, manifest digest included."""
        return _HEADER.pack(*vars(self).values())

    @staticmethod
    def from_bytes(content: bytes) -> "ExpertHeader":
        """Fields of the first 256 bytes."""
        values: dict[str, Any] = dict(zip(ExpertHeader.__dataclass_fields__, _HEADER.unpack(content), strict=True))
        return ExpertHeader(**values)


def manifest_digest(header: bytes, descriptors: bytes) -> bytes:
    """SHA-256 over the header with its digest field zero, then the descriptors."""
    unsigned = bytearray(header)
    unsigned[_MANIFEST_DIGEST] = bytes(32)
    return hashlib.sha256(unsigned + descriptors).digest()


def sign(header: ExpertHeader, layers: Sequence[LayerDescriptor]) -> bytes:
    """The bytes of a store before its data: header with its digest, descriptors, zero padding."""
    content = bytearray(header.to_bytes())
    descriptors = b"".join(layer.to_bytes() for layer in layers)
    content[_MANIFEST_DIGEST] = manifest_digest(bytes(content), descriptors)
    return bytes(content + descriptors).ljust(header.data_offset, b"\0")


def data_offset(num_layers: int) -> int:
    """Where the first layer starts: the first page behind the descriptors."""
    return align_up(HEADER_BYTES + num_layers * DESCRIPTOR_BYTES, PAGE_BYTES)


def describe_layers(geometry: Geometry, layers: Sequence[int], storage_format: int) -> tuple[LayerDescriptor, ...]:
    """Descriptors of the layers of a model, one after the other from the data offset on, each on a page."""
    components = _describe_components(geometry, storage_format)
    record_bytes = sum(component.num_bytes for component in components)
    offset, described = data_offset(len(layers)), []
    for layer in layers:
        described.append(
            LayerDescriptor(
                layer=layer,
                num_experts=geometry.num_experts,
                record_bytes=record_bytes,
                offset=offset,
                num_bytes=record_bytes * geometry.num_experts,
                components=components,
            )
        )
        offset = align_up(described[-1].end, PAGE_BYTES)
    return tuple(described)


def _describe_components(geometry: Geometry, storage_format: int) -> tuple[ComponentDescriptor, ...]:
    planar = storage_format == AFFINE_PLANAR
    components: list[ComponentDescriptor] = []
    for role, name in enumerate(COMPONENTS):
        output_size, input_size = geometry.component_shape(name)
        components.append(
            ComponentDescriptor(
                role=role,
                ggml_type=GGML_TYPE_I8 if planar else GGML_TYPE_Q4_K,
                num_dims=3,
                block_elements=geometry.codec.group_size if planar else INTERLEAVED_BLOCK_ELEMENTS,
                input_size=input_size,
                output_size=output_size,
                num_experts=geometry.num_experts,
                num_bytes=geometry.codec.matrix_bytes(output_size, input_size),
                offset=sum(component.num_bytes for component in components),
            )
        )
    return tuple(components)


def codec_of(component: ComponentDescriptor) -> Codec | None:
    """The affine codec that a planar component's bytes and dimensions imply; None when they imply none."""
    weights, group_size = component.input_size * component.output_size, component.block_elements
    if group_size not in (32, 64, 128) or component.input_size % group_size or weights == 0:
        return None
    word_bytes = component.num_bytes - 4 * weights // group_size
    bits, rest = divmod(8 * word_bytes, weights)
    return Codec(bits=bits, group_size=group_size) if not rest and bits in (2, 3, 4, 5, 6, 8) else None
