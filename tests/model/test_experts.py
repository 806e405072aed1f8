"""One expert at a time, stacked tensors and a strided slot pool give the same bits."""

import mlx.core as mx
import numpy as np
import pytest

from workbench.model.experts import QuantizedMatrix, expert_forward, stacked_expert_forward

EXPERTS, HIDDEN, INTERMEDIATE, TOP_K, BITS, GROUP = 16, 256, 64, 5, 4, 64


def quantised(rng, output_size, input_size):
    weights = mx.array(rng.standard_normal((EXPERTS, output_size, input_size), np.float32)).astype(mx.bfloat16)
    return mx.quantize(weights, group_size=GROUP, bits=BITS)


@pytest.fixture(scope="module")
def stack():
    """Gate, up and down with scales as stored (bf16)."""
    rng = np.random.default_rng(0)
    shapes = [(INTERMEDIATE, HIDDEN), (INTERMEDIATE, HIDDEN), (HIDDEN, INTERMEDIATE)]
    return [QuantizedMatrix(*quantised(rng, *shape), BITS, GROUP) for shape in shapes]


def one(matrix, expert):
    parts = [array[expert : expert + 1].squeeze(0) for array in (matrix.words, matrix.scales, matrix.biases)]
    return QuantizedMatrix(*parts, BITS, GROUP)


def with_float32_scales(matrix):
    return QuantizedMatrix(matrix.words, matrix.scales.astype(mx.float32), matrix.biases.astype(mx.float32), BITS, GROUP)


def routed(num_tokens):
    rng = np.random.default_rng(num_tokens)
    hidden = mx.array(rng.standard_normal((num_tokens, HIDDEN), np.float32))
    ids = np.argsort(rng.random((num_tokens, EXPERTS)), axis=1)[:, :TOP_K].astype(np.uint32)
    return hidden, ids


@pytest.mark.parametrize("num_tokens", [1, 3, 8, 40])
def test_slot_by_slot_equals_the_stack(stack, num_tokens):
    hidden, ids = routed(num_tokens)
    together = np.array(stacked_expert_forward(hidden, mx.array(ids), *map(with_float32_scales, stack)))
    for expert in range(EXPERTS):
        rows, ranks = np.nonzero(ids == expert)
        if len(rows):
            alone = expert_forward(hidden[mx.array(rows)], *(one(matrix, expert) for matrix in stack))
            np.testing.assert_array_equal(np.array(alone), together[rows, ranks])


def test_a_strided_pool_equals_the_stack_and_sees_writes(stack):
    hidden, ids = routed(2)
    stack = list(map(with_float32_scales, stack))
    words_a_record = [matrix.words.shape[1] * matrix.words.shape[2] for matrix in stack]
    stride = sum(words_a_record) + 24
    pool = mx.zeros((EXPERTS, stride), mx.uint32)
    mx.eval(pool)
    view, pooled, offset = np.array(pool, copy=False), [], 7
    for matrix, size in zip(stack, words_a_record):
        _, rows, columns = matrix.words.shape
        words = mx.as_strided(pool, (EXPERTS, rows, columns), (stride, columns, 1), offset)
        pooled.append(QuantizedMatrix(words, matrix.scales, matrix.biases, BITS, GROUP))
        view[:, offset : offset + size] = np.array(matrix.words).reshape(EXPERTS, -1)
        offset += size
    expected = stacked_expert_forward(hidden, mx.array(ids), *stack)
    np.testing.assert_array_equal(np.array(stacked_expert_forward(hidden, mx.array(ids), *pooled)), np.array(expected))


def test_equals_the_dequantised_arithmetic(stack):
    hidden, _ = routed(1)
    gate, up, down = (
        np.array(mx.dequantize(m.words, m.scales, m.biases, group_size=GROUP, bits=BITS).astype(mx.float32))[3] for m in stack
    )
    x = np.array(hidden, np.float64)
    inner = x @ gate.T
    expected = (inner / (1 + np.exp(-inner)) * (x @ up.T)) @ down.T
    actual = np.array(expert_forward(hidden, *(one(matrix, 3) for matrix in stack)))
    # a bf16 product of scale and word is not exact, MLX's dequantisation of a bf16 matrix rounds to bf16
    np.testing.assert_allclose(actual, expected, atol=2e-2 * np.abs(expected).max())
