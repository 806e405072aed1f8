"""Routed experts: SwiGLU on quantised matrices, one expert at a time or gathered from a stack.

Both computations give the same bits on the CPU, so a slot pool and stacked checkpoint tensors can stand in for each other.
Shapes: T tokens, k experts per token, H hidden, I intermediate.
"""

from dataclasses import dataclass

import mlx.core as mx


@dataclass(frozen=True, slots=True)
class QuantizedMatrix:
    """An MLX affine matrix `(output, input)`, or a stack of them with a leading axis.

    `words` uint32 `(..., output, input * bits / 32)`; `scales` and `biases` `(..., output, input / group_size)`. Float32
    scales save MLX a conversion at each product and change no bit of the result.
    """

    words: mx.array
    scales: mx.array
    biases: mx.array
    bits: int
    group_size: int

    def apply(self, x: mx.array) -> mx.array:
        """`x [n, input]` times the transposed matrix: `[n, output]`."""
        return mx.quantized_matmul(
            x, self.words, self.scales, self.biases, transpose=True, bits=self.bits, group_size=self.group_size
        )

    def apply_gathered(self, x: mx.array, ids: mx.array) -> mx.array:
        """`x [T, k or 1, 1, input]` times the transposed matrices that `ids [T, k]` name: `[T, k, 1, output]`."""
        return mx.gather_qmm(
            x,
            self.words,
            self.scales,
            self.biases,
            rhs_indices=ids,
            transpose=True,
            bits=self.bits,
            group_size=self.group_size,
        )


def swiglu(gate: mx.array, up: mx.array) -> mx.array:
    """`silu(gate) * up`."""
    return gate * mx.sigmoid(gate) * up


def expert_forward(hidden: mx.array, gate: QuantizedMatrix, up: QuantizedMatrix, down: QuantizedMatrix) -> mx.array:
    """One expert on n rows: `[n, H]` -> `[n, H]`."""
    return down.apply(swiglu(gate.apply(hidden), up.apply(hidden)))


def stacked_expert_forward(
    hidden: mx.array, ids: mx.array, gate: QuantizedMatrix, up: QuantizedMatrix, down: QuantizedMatrix
) -> mx.array:
    """The experts (or slots) `ids [T, k]` of a stack on `hidden [T, H]`: `[T, k, H]`."""
    x = hidden[:, None, None, :]
    return down.apply_gathered(swiglu(gate.apply_gathered(x, ids), up.apply_gathered(x, ids)), ids).squeeze(2)
