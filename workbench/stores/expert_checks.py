"""Checks of an ExpertMajor v2 store before a byte of it is used. Every refusal is a BadInput of one line.

Sizes are compared as Python integers before anything is allocated, so values near 2^63 are refused like any other.
"""

from itertools import pairwise
from pathlib import Path

from workbench.errors import BadInput
from workbench.geometry import COMPONENTS, DOWN, GATE, UP, Codec, Geometry
from workbench.stores.expert_header import (
    AFFINE_INTERLEAVED,
    AFFINE_PLANAR,
    DESCRIPTOR_BYTES,
    FAMILIES,
    FAMILY_QWEN4EXP,
    GGML_BLOCKS,
    GGML_TYPE_I8,
    GGML_TYPE_Q4_K,
    HEADER_BYTES,
    INTERLEAVED_BLOCK_ELEMENTS,
    MAGIC,
    VERSION,
    ComponentDescriptor,
    ExpertHeader,
    LayerDescriptor,
    codec_of,
)
from workbench.units import PAGE_BYTES, align_up

MAX_LAYERS = 4096
MAX_EXPERTS = 65_536
MAX_EXPERTS_QWEN4EXP = 512

_INTERLEAVED_GROUP_SIZE, _INTERLEAVED_GROUP_BYTES = 64, 36


def refusal(path: Path, problem: str) -> BadInput:
    """The error for a store that breaks the format."""
    return BadInput(f"{path}: {problem} (damaged, or no ExpertMajor v2 store: copy or pack it again)")


def check_header(path: Path, header: ExpertHeader, region_bytes: int) -> None:
    """Refuses a header that is wrong by itself or that doesn't fit the `region_bytes` it lies in."""
    layers_end = HEADER_BYTES + header.num_layers * DESCRIPTOR_BYTES
    rules = (
        (header.magic == MAGIC, f"magic is {header.magic!r}, not {MAGIC!r}"),
        (header.version == VERSION, f"version {header.version}; this workbench reads {VERSION}"),
        (header.header_bytes == HEADER_BYTES, f"header of {header.header_bytes} bytes, must be {HEADER_BYTES}"),
        (header.family in FAMILIES, f"unknown family {header.family}"),
        (1 <= header.num_layers <= MAX_LAYERS, f"{header.num_layers} layers, must be 1..{MAX_LAYERS}"),
        (1 <= header.num_experts <= _max_experts(header), f"{header.num_experts} experts, must be 1..{_max_experts(header)}"),
        (1 <= header.experts_used <= header.num_experts, f"{header.experts_used} of {header.num_experts} experts used"),
        (header.num_source_tensors > 0, "a source of no tensors"),
        (header.source_bytes < 2**63, f"a source of {header.source_bytes} bytes"),
        (header.num_descriptors == header.num_layers, f"{header.num_descriptors} descriptors of {header.num_layers} layers"),
        (header.descriptor_bytes == layers_end - HEADER_BYTES, f"descriptors of {header.descriptor_bytes} bytes"),
        (header.descriptor_offset == HEADER_BYTES, f"descriptors at {header.descriptor_offset}, must be at {HEADER_BYTES}"),
        (header.data_offset % PAGE_BYTES == 0, f"data offset {header.data_offset} is no multiple of {PAGE_BYTES}"),
        (header.data_offset >= layers_end, f"data offset {header.data_offset} lies within the descriptors"),
        (header.store_bytes == region_bytes, f"store of {header.store_bytes} bytes in {region_bytes}: truncated or overlong"),
        (header.data_offset + header.data_bytes == header.store_bytes, f"data size {header.data_bytes} leaves the store"),
        (header.storage_format in (GGML_BLOCKS, AFFINE_INTERLEAVED, AFFINE_PLANAR), f"format {header.storage_format}"),
        (header.group_size in _group_sizes(header.storage_format), f"group size {header.group_size}"),
        (not any(header.reserved), "reserved header bytes must be zero"),
    )
    _require(path, rules)


def _require(path: Path, rules: tuple[tuple[bool, str], ...]) -> None:
    for holds, problem in rules:
        if not holds:
            raise refusal(path, problem)


def _max_experts(header: ExpertHeader) -> int:
    return MAX_EXPERTS_QWEN4EXP if header.family == FAMILY_QWEN4EXP else MAX_EXPERTS


def _group_sizes(storage_format: int) -> tuple[int, ...]:
    return {GGML_BLOCKS: (0,), AFFINE_INTERLEAVED: (_INTERLEAVED_GROUP_SIZE,)}.get(storage_format, (32, 64, 128))


def check_layers(path: Path, header: ExpertHeader, layers: tuple[LayerDescriptor, ...]) -> None:
    """Refuses descriptors that are wrong, overlap, leave gaps, or leave the data."""
    for layer in layers:
        _check_layer(path, header, layer)
    indices = [layer.layer for layer in layers]
    if indices != sorted(set(indices)) or indices[-1] >= MAX_LAYERS:
        raise refusal(path, f"layer indices {indices[:8]}... must ascend below {MAX_LAYERS}")
    if layers[0].offset != header.data_offset:
        raise refusal(path, f"data starts at {header.data_offset}, but its first layer at {layers[0].offset}")
    for before, after in pairwise(layers):
        if after.offset < before.end:
            raise refusal(path, f"layer {after.layer} overlaps layer {before.layer}")
        if after.offset != align_up(before.end, PAGE_BYTES):
            raise refusal(path, f"missing extent between layers {before.layer} and {after.layer}")
    if header.store_bytes not in (layers[-1].end, align_up(layers[-1].end, PAGE_BYTES)):
        raise refusal(path, f"the last layer ends at {layers[-1].end}, the store at {header.store_bytes}")


def _check_layer(path: Path, header: ExpertHeader, layer: LayerDescriptor) -> None:
    where = f"layer {layer.layer}: "
    rules = (
        (layer.num_experts == header.num_experts, f"{layer.num_experts} experts, the store has {header.num_experts}"),
        (layer.offset % PAGE_BYTES == 0, f"offset {layer.offset} is no multiple of {PAGE_BYTES}"),
        (layer.num_bytes == layer.record_bytes * layer.num_experts, f"{layer.num_bytes} bytes are not the sum of its records"),
        (layer.end <= header.store_bytes, f"ends at {layer.end}, behind the store"),
        (not any(layer.reserved), "reserved descriptor bytes must be zero"),
    )
    _require(path, tuple((holds, where + problem) for holds, problem in rules))
    offset = 0
    for role, component in enumerate(layer.components):
        _check_component(path, header, component, role, where + COMPONENTS[role] + ": ")
        if component.offset != offset:
            raise refusal(path, f"{where}{COMPONENTS[role]} at {component.offset} of the record, must be at {offset}")
        offset += component.num_bytes
    if offset != layer.record_bytes:
        raise refusal(path, f"{where}components of {offset} bytes in records of {layer.record_bytes}")
    _check_shapes(path, layer, where)


def _check_component(path: Path, header: ExpertHeader, component: ComponentDescriptor, role: int, where: str) -> None:
    rules = (
        (component.role == role, f"role {component.role}, must be {role}"),
        (component.num_dims == 3, f"{component.num_dims} dimensions, must be 3"),
        (component.num_experts == header.num_experts, f"{component.num_experts} experts"),
        (0 < component.input_size < 2**31 and 0 < component.output_size < 2**31, "dimensions out of range"),
    )
    _require(path, tuple((holds, where + problem) for holds, problem in rules))
    if not _bytes_agree(header, component):
        shape = f"{component.output_size} x {component.input_size}"
        raise refusal(
            path,
            f"{where}{component.num_bytes} bytes, ggml type {component.ggml_type} and blocks of "
            f"{component.block_elements} don't describe {shape} weights in format {header.storage_format}",
        )


def _bytes_agree(header: ExpertHeader, component: ComponentDescriptor) -> bool:
    weights = component.input_size * component.output_size
    if header.storage_format == AFFINE_PLANAR:
        codec = codec_of(component)
        return component.ggml_type == GGML_TYPE_I8 and codec is not None and codec.group_size == header.group_size
    if header.storage_format == AFFINE_INTERLEAVED:
        kind = (component.ggml_type, component.block_elements)
        groups, rest = divmod(component.input_size, _INTERLEAVED_GROUP_SIZE)
        num_bytes = groups * component.output_size * _INTERLEAVED_GROUP_BYTES
        return kind == (GGML_TYPE_Q4_K, INTERLEAVED_BLOCK_ELEMENTS) and not rest and component.num_bytes == num_bytes
    block = _ggml_block(component.ggml_type)
    if block is None or component.input_size % block[0]:
        return False
    return component.block_elements == block[0] and component.num_bytes == weights // block[0] * block[1]


def _ggml_block(ggml_type: int) -> tuple[int, int] | None:
    from gguf import GGML_QUANT_SIZES

    return next((size for kind, size in GGML_QUANT_SIZES.items() if kind.value == ggml_type), None)


def _check_shapes(path: Path, layer: LayerDescriptor, where: str) -> None:
    gate, up, down = ((component.output_size, component.input_size) for component in layer.components)
    if gate != up or down != gate[::-1]:
        raise refusal(path, f"{where}shapes {GATE} {gate}, {UP} {up}, {DOWN} {down} are not one expert's")


def common_codec(path: Path, header: ExpertHeader, layers: tuple[LayerDescriptor, ...]) -> Codec | None:
    """The affine codec of every component, None for GGML blocks. Refuses a mixture."""
    if header.storage_format == GGML_BLOCKS:
        return None
    if header.storage_format == AFFINE_INTERLEAVED:
        return Codec(bits=4, group_size=_INTERLEAVED_GROUP_SIZE)
    codecs = {codec_of(component) for layer in layers for component in layer.components}
    if len(codecs) != 1:
        raise refusal(path, "its components have different bits; one codec for all is supported")
    return codecs.pop()


def check_geometry(
    path: Path, header: ExpertHeader, layers: tuple[LayerDescriptor, ...], codec: Codec | None, geometry: Geometry
) -> None:
    """Refuses a store of another model; the MTP head's layer may be missing."""
    indices = [layer.layer for layer in layers]
    expected = range(geometry.num_hidden_layers), range(geometry.num_expert_layers)
    gate = layers[0].components[0]
    store = {
        "family": FAMILIES[header.family],
        "layers": indices,
        "experts": header.num_experts,
        "experts per token": header.experts_used,
        "(intermediate, hidden)": (gate.output_size, gate.input_size),
        "codec": codec,
    }
    model = {
        "family": FAMILIES[FAMILY_QWEN4EXP],
        "layers": indices if indices in [list(layers) for layers in expected] else list(expected[1]),
        "experts": geometry.num_experts,
        "experts per token": geometry.num_experts_per_tok,
        "(intermediate, hidden)": geometry.component_shape(GATE),
        "codec": geometry.codec,
    }
    for name, value in store.items():
        if value != model[name]:
            raise BadInput(f"{path}: geometry disagrees with the model's: {name} {value}, the model has {model[name]}")
    if any(layer.components != layers[0].components for layer in layers):
        raise BadInput(f"{path}: geometry disagrees with the model's: its layers have records of different shapes")
