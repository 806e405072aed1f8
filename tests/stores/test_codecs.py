import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from workbench.geometry import Codec
from workbench.stores.codecs import (
    bf16_to_float32,
    decode_affine,
    deinterleave_component,
    encode_affine,
    float32_to_bf16,
    interleave_groups,
    pack_levels,
    unpack_levels,
)

codecs = st.builds(Codec, bits=st.sampled_from((2, 3, 4, 5, 6, 8)), group_size=st.sampled_from((32, 64, 128)))
finite = st.floats(-1e4, 1e4, width=32) | st.sampled_from((0.0, 1e-9, -1e-9, 7.5, -7.5))
matrices = arrays.arrays(np.float32, st.tuples(st.integers(1, 3), st.sampled_from((128, 256))), elements=finite)


def bits_of(array):
    return np.array(array.view(mx.uint16))


@given(matrices, codecs)
def test_encode_and_decode_equal_mlx_bit_for_bit(values, codec):
    values = bf16_to_float32(float32_to_bf16(values))
    ours = encode_affine(values, codec)
    theirs = mx.quantize(mx.array(values).astype(mx.bfloat16), codec.group_size, codec.bits)
    assert np.array_equal(ours[0], np.array(theirs[0]))
    assert np.array_equal(ours[1], bits_of(theirs[1]))
    assert np.array_equal(ours[2], bits_of(theirs[2]))
    scales, biases = (part.astype(mx.float32) for part in theirs[1:])
    decoded = mx.dequantize(theirs[0], scales, biases, codec.group_size, codec.bits)
    assert np.array_equal(decode_affine(*ours, codec).view(np.uint32), np.array(decoded).view(np.uint32))


@given(arrays.arrays(np.float32, 8, elements=st.floats(-(2.0**127), 2.0**127, width=32)))
def test_bf16_rounds_as_mlx_does(values):
    assert np.array_equal(float32_to_bf16(values), bits_of(mx.array(values).astype(mx.bfloat16)))


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_levels_survive_packing(bits):
    levels = np.random.default_rng(bits).integers(0, 2**bits, (4, 64), np.uint32)
    words = pack_levels(levels, bits)
    assert words.shape == (4, 2 * bits)
    assert np.array_equal(unpack_levels(words, bits), levels)


@given(st.integers(1, 4), st.integers(1, 3), st.randoms(use_true_random=False))
def test_interleaved_bytes_hold_the_planar_ones(output_size, groups, random):
    planar = np.frombuffer(random.randbytes(output_size * groups * 36), np.uint8)
    words, scales, biases = np.split(planar, [output_size * groups * 32, output_size * groups * 34])
    interleaved = interleave_groups(
        words.view("<u4").reshape(output_size, -1),
        scales.view("<u2").reshape(output_size, groups),
        biases.view("<u2").reshape(output_size, groups),
    )
    assert interleaved.shape == (output_size, groups, 36)
    assert interleaved[0, 0].tolist() == [*words[:32], *scales[:2], *biases[:2]]
    assert np.array_equal(deinterleave_component(interleaved.reshape(-1), (output_size, groups * 64)), planar)
