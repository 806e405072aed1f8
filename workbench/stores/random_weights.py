"""Weights drawn from a seed, any slice of them at any time: the same bytes in whatever order they are requested.

Philox (Salmon et al., 2011) is a counter-based generator whose stream numpy keeps fixed; the position of a weight is its counter.
"""

import hashlib
import math

import numpy as np

from workbench.geometry import Codec
from workbench.stores.codecs import float32_to_bf16

BLOCK_BYTES = 32
"""Bytes of one counter step."""
_UNIFORM_TO_STD = math.sqrt(3)


def random_bytes(label: str, offset: int, num_bytes: int) -> np.ndarray:
    """Bytes `offset` to `offset + num_bytes` of the endless uint8 stream called `label`."""
    key = int.from_bytes(hashlib.sha256(label.encode()).digest()[:16], "little")
    first, inner = divmod(offset, BLOCK_BYTES)
    num_blocks = -(-(inner + num_bytes) // BLOCK_BYTES)
    words = np.random.Philox(key=key).advance(first).random_raw(num_blocks * BLOCK_BYTES // 8)
    return words.astype("<u8", copy=False).view(np.uint8)[inner : inner + num_bytes]


def uniform_bf16(label: str, offset: int, count: int, std: float) -> np.ndarray:
    """`count` bf16 bit patterns from position `offset` on: uniform with mean 0 and standard deviation `std`."""
    levels = random_bytes(label, 2 * offset, 2 * count).view("<u2").astype(np.float32)
    return float32_to_bf16((levels - np.float32(32_767.5)) * np.float32(std * _UNIFORM_TO_STD / 32_768))


def affine_scales(raw: np.ndarray, codec: Codec, std: float) -> tuple[np.ndarray, np.ndarray]:
    """bf16 scales and biases from random uint16, such that uniform levels give weights of mean about 0 and deviation `std`.

    Scales spread over a factor of five thirds, so that no two groups are alike.
    """
    steps = 2**codec.bits - 1
    middle = std * math.sqrt(12 / ((steps + 1) ** 2 - 1))
    scales = middle * (np.float32(0.75) + raw.astype(np.float32) * np.float32(0.5 / 65_536))
    return float32_to_bf16(scales), float32_to_bf16(scales * np.float32(-steps / 2))


def random_affine(label: str, first: int, stop: int, shape: tuple[int, int], codec: Codec, std: float) -> list[np.ndarray]:
    """Quantised `(output, input)` matrices number `first` to `stop` of stream `label`: words, scales, biases."""
    output_size, input_size = shape
    word_bytes, groups = output_size * input_size * codec.bits // 8, output_size * input_size // codec.group_size
    words = random_bytes(f"{label}/words", first * word_bytes, (stop - first) * word_bytes).view("<u4")
    spread = random_bytes(f"{label}/scales", 2 * first * groups, 2 * (stop - first) * groups).view("<u2")
    return [part.reshape(stop - first, output_size, -1) for part in (words, *affine_scales(spread, codec, std))]
