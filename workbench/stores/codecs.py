"""How weights become bytes: MLX affine quantisation and bfloat16 in numpy, and the two orders of bytes of a quantised matrix.

`encode_affine` and `decode_affine` equal `mx.quantize` and `mx.dequantize` of the CPU bit for bit (tests compare them); `pack`
calls `mx.quantize` itself. Shapes: `K` input values of a row, `G = K / group_size` groups.
"""

import numpy as np

from workbench.geometry import Codec

_SMALLEST_SCALE = np.float32(1e-7)
_INTERLEAVED_GROUP = 64
_INTERLEAVED_WORDS = _INTERLEAVED_GROUP * 4 // 32


def bf16_to_float32(bits: np.ndarray) -> np.ndarray:
    """bfloat16 bit patterns (uint16) as float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def float32_to_bf16(values: np.ndarray) -> np.ndarray:
    """Finite float32 rounded to the nearest bfloat16, ties to even, as uint16 bit patterns."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def encode_affine(values: np.ndarray, codec: Codec) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Quantises `(..., K)` float32 to words `(..., K * bits / 32)` uint32 and bf16 scales and biases `(..., G)` uint16."""
    groups = values.reshape(*values.shape[:-1], -1, codec.group_size).astype(np.float32)
    low, high = groups.min(-1, keepdims=True), groups.max(-1, keepdims=True)
    steps = np.float32(2**codec.bits - 1)
    low_is_edge = np.abs(low) > np.abs(high)
    scale = np.maximum((high - low) / steps, _SMALLEST_SCALE)
    scale = np.where(low_is_edge, scale, -scale)
    edge = np.where(low_is_edge, low, high)
    edge_step = np.rint(edge / scale)
    off_zero = edge_step != 0
    scale = np.where(off_zero, edge / np.where(off_zero, edge_step, np.float32(1)), scale)
    bias = np.where(off_zero, edge, np.float32(0))
    levels = np.clip(np.rint((groups - bias) / scale), 0, steps).astype(np.uint32)
    words = pack_levels(levels.reshape(values.shape), codec.bits)
    return words, float32_to_bf16(scale[..., 0]), float32_to_bf16(bias[..., 0])


def pack_levels(levels: np.ndarray, bits: int) -> np.ndarray:
    """Integers below `2^bits`, `(..., K)`, as uint32 words `(..., K * bits / 32)`, the first in the lowest bits."""
    planes = (levels[..., None] >> np.arange(bits, dtype=np.uint32)).astype(np.uint8) & 1
    packed = np.packbits(planes.reshape(*levels.shape[:-1], -1), axis=-1, bitorder="little")
    return packed.view("<u4")


def unpack_levels(words: np.ndarray, bits: int) -> np.ndarray:
    """The inverse of `pack_levels`, as uint8."""
    content = np.ascontiguousarray(words).view(np.uint8)
    if 8 % bits == 0:
        levels = content[..., None] >> np.arange(0, 8, bits, dtype=np.uint8) & (2**bits - 1)
        return levels.reshape(*words.shape[:-1], -1)
    planes = np.unpackbits(content, axis=-1, bitorder="little")
    planes = planes.reshape(*words.shape[:-1], -1, bits)
    return np.packbits(planes, axis=-1, bitorder="little")[..., 0]


def decode_affine(words: np.ndarray, scales: np.ndarray, biases: np.ndarray, codec: Codec) -> np.ndarray:
    """float32 `(..., K)` = scale x level + bias, from the arrays of `encode_affine`; the product is exact in float32."""
    levels = unpack_levels(words, codec.bits).astype(np.float32)
    groups = levels.reshape(*scales.shape, codec.group_size)
    values = groups * bf16_to_float32(scales)[..., None] + bf16_to_float32(biases)[..., None]
    return values.reshape(levels.shape)


def interleave_groups(words: np.ndarray, scales: np.ndarray, biases: np.ndarray) -> np.ndarray:
    """Storage format 1 of a 4-bit matrix of group 64: `(..., G, 36)` uint8, packed bytes, scale, bias by group."""
    groups = np.empty((*scales.shape, 4 * _INTERLEAVED_WORDS + 4), np.uint8)
    groups[..., : 4 * _INTERLEAVED_WORDS] = words.view(np.uint8).reshape(*scales.shape, -1)
    groups[..., -4:-2] = scales[..., None].view(np.uint8)
    groups[..., -2:] = biases[..., None].view(np.uint8)
    return groups


def deinterleave_component(content: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Format 1 bytes of one `(output, input)` component as format 2 bytes: all words, then all scales, then all biases."""
    output_size, input_size = shape
    groups = content.reshape(output_size, input_size // _INTERLEAVED_GROUP, 4 * _INTERLEAVED_WORDS + 4)
    parts = groups[..., :-4], groups[..., -4:-2], groups[..., -2:]
    return np.concatenate([np.ascontiguousarray(part).reshape(-1) for part in parts])
