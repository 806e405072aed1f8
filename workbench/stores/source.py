"""Sources of a store's weights: a checkpoint, or a generator of random weights."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from workbench.geometry import Codec, Geometry
from workbench.stores.manifest import SourceIdentity
from workbench.stores.safetensors_file import TensorInfo

Matrices = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Words uint32, scales and biases as bf16 bit patterns uint16, each `[experts or rows, ...]` as `mx.quantize` returns them."""


class StoreSource(Protocol):
    """Returns weights in any order, a few MiB at a time; the same request returns the same bytes."""

    @property
    def geometry(self) -> Geometry:
        """Shapes, and the codec of the routed experts."""

    @property
    def identity(self) -> SourceIdentity:
        """Identity that the store is bound to."""

    @property
    def expert_layers(self) -> tuple[int, ...]:
        """Layers with routed experts, ascending."""

    @property
    def resident(self) -> Mapping[str, TensorInfo]:
        """Every tensor that is neither routed experts nor n-gram tables."""

    def store_config(self) -> dict[str, Any]:
        """The Hugging Face config of the store."""

    def small_files(self) -> dict[str, bytes]:
        """Tokenizer files, by name."""

    def component(self, layer: int, component: str, first: int, stop: int) -> Matrices:
        """Quantised gate, up or down of experts `first` to `stop` of a layer: `[n, output, ...]`."""

    def ngram_rows(self, layer: int, first: int, stop: int) -> np.ndarray:
        """N-gram rows as bf16 bit patterns `[n, row width]`."""

    def ngram_matrices(self, layer: int, codec: Codec, first: int, stop: int) -> Matrices:
        """Quantised n-gram rows."""

    def read_resident(self, name: str, offset: int, num_bytes: int) -> np.ndarray:
        """Bytes of a resident tensor, uint8."""
