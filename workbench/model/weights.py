"""Trunk tensors by their Hugging Face names, in the form that the CPU multiplies fastest."""

from collections.abc import MutableMapping

import mlx.core as mx

from workbench.errors import BadInput


class Weights:
    """The tensors of a checkpoint's trunk below one prefix, as float32."""

    def __init__(self, tensors: MutableMapping[str, mx.array], prefix: str = "") -> None:
        self._tensors = tensors
        self._prefix = prefix

    def below(self, name: str) -> "Weights":
        """The tensors whose names continue with `name.`."""
        return Weights(self._tensors, f"{self._prefix}{name}.")

    def __contains__(self, name: str) -> bool:
        return self._prefix + name in self._tensors

    def stored(self, name: str) -> mx.array:
        """The tensor as stored. Raises BadInput when the checkpoint lacks it, or when one of its values is NaN or infinite."""
        try:
            tensor = self._tensors[self._prefix + name]
        except KeyError:
            raise BadInput(f"the checkpoint lacks the tensor {self._prefix + name}") from None
        if mx.issubdtype(tensor.dtype, mx.floating) and not mx.isfinite(tensor).all().item():
            raise BadInput(f"the tensor {self._prefix + name} holds NaN or infinity: the checkpoint is damaged")
        return tensor

    def array(self, name: str) -> mx.array:
        """The tensor in float32, any shape. Evaluated and removed from the tensors, so that loading holds at most one twice."""
        tensor = self.stored(name).astype(mx.float32)
        del self._tensors[self._prefix + name]
        mx.eval(tensor)
        return tensor

    def rows(self, name: str) -> mx.array:
        """`name.weight` of a linear module in float32, shape `(output, input)`."""
        return self.array(f"{name}.weight")


def joined(*matrices: mx.array) -> mx.array:
    """Linear weights `(output_i, input)` side by side as one contiguous `(input, sum of output_i)`.

    One product then computes several projections, and the BLAS of MLX's Linux wheel is fastest in this orientation.
    """
    matrix = mx.contiguous(mx.concatenate(list(matrices)).T)
    mx.eval(matrix)
    return matrix
