"""`workbench slice`: a store of true Flash-Next records without a checkpoint, drawn from a seed straight into its files.

All records differ and can't be compressed, so a disk can't appear faster than it is. The routing has no meaning.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from workbench.geometry import Codec, Geometry, slice_config
from workbench.paths import bundled_model
from workbench.stores.build import BuildSettings, StoreBuilder
from workbench.stores.checkpoint import TOKENIZER_NAMES
from workbench.stores.manifest import SourceIdentity, StoreManifest
from workbench.stores.random_weights import random_affine, random_bytes, uniform_bf16
from workbench.stores.safetensors_file import TensorInfo
from workbench.stores.source import Matrices
from workbench.stores.trunk import TrunkTensor, trunk_tensors

_GENERATOR = 1
"""Version of the generator; part of the store's identity."""
_EXPERT_GAIN = 2.0
"""Factor of 1/sqrt(input), with which an expert's output is of order one."""
_ROW_STD = 0.5
_SMALLEST_DECAY, _LARGEST_DECAY = 1.0, 16.0


class SliceSource:
    """A model drawn from a seed, as a `StoreSource`."""

    def __init__(self, config: dict[str, Any], seed: int) -> None:
        self.geometry = Geometry.from_config(config)
        self.expert_layers = tuple(range(self.geometry.num_hidden_layers))
        self._config = config
        self._seed = seed
        self._trunk = trunk_tensors(self.geometry)

    @cached_property
    def identity(self) -> SourceIdentity:
        """Digest of the recipe: there is no file to hash."""
        recipe = json.dumps({"generator": _GENERATOR, "seed": self._seed, "config": self._config}, sort_keys=True)
        return SourceIdentity(sha256=hashlib.sha256(recipe.encode()).hexdigest(), num_bytes=0, num_tensors=len(self._trunk))

    @property
    def resident(self) -> Mapping[str, TensorInfo]:
        """Tensors of the trunk, by name."""
        return {name: tensor.info for name, tensor in self._trunk.items()}

    def store_config(self) -> dict[str, Any]:
        """The config that the model was made from."""
        return self._config

    def small_files(self) -> dict[str, bytes]:
        """The bundled model's tokenizer; the model's vocabulary is larger than the tokenizer's."""
        return {name: (bundled_model() / name).read_bytes() for name in TOKENIZER_NAMES}

    def _label(self, *parts: object) -> str:
        return "/".join(str(part) for part in (_GENERATOR, self._seed, *parts))

    def component(self, layer: int, component: str, first: int, stop: int) -> Matrices:
        """Random levels, with scales that keep the magnitude of an expert's output."""
        shape = self.geometry.component_shape(component)
        std = _EXPERT_GAIN / math.sqrt(shape[1])
        words, scales, biases = random_affine(
            self._label("experts", layer, component), first, stop, shape, self.geometry.codec, std
        )
        return words, scales, biases

    def ngram_rows(self, layer: int, first: int, stop: int) -> np.ndarray:
        """bf16 rows."""
        width = self.geometry.ple_row_width
        flat = uniform_bf16(self._label("rows", layer), first * width, (stop - first) * width, _ROW_STD)
        return flat.reshape(stop - first, width)

    def ngram_matrices(self, layer: int, codec: Codec, first: int, stop: int) -> Matrices:
        """Quantised rows."""
        shape = (1, self.geometry.ple_row_width)
        words, scales, biases = random_affine(self._label("affine rows", layer), first, stop, shape, codec, _ROW_STD)
        return words[:, 0], scales[:, 0], biases[:, 0]

    def read_resident(self, name: str, offset: int, num_bytes: int) -> np.ndarray:
        """Bytes of a trunk tensor."""
        tensor = self._trunk[name]
        if tensor.start == "uniform":
            return uniform_bf16(self._label(name), offset // 2, num_bytes // 2, tensor.std).view(np.uint8)
        return self._small_tensor(name, tensor).view(np.uint8)[offset : offset + num_bytes]

    def _small_tensor(self, name: str, tensor: TrunkTensor) -> np.ndarray:
        if tensor.start == "integers":
            return np.array(tensor.integers, "<i8")
        size = math.prod(tensor.info.shape)
        if tensor.start == "decay":
            # logarithms of float32 differ between machines in the last bit; rounded from float64 they don't
            levels = random_bytes(self._label(name), 0, 2 * size).view("<u2").astype(np.float64) / 65_535
            return np.log(_SMALLEST_DECAY + levels * (_LARGEST_DECAY - _SMALLEST_DECAY)).astype("<f4")
        return np.full(size, tensor.start == "ones", "<f4")


def make_slice(out: Path, *, num_layers: int = 4, seed: int = 0, settings: BuildSettings = BuildSettings()) -> StoreManifest:  # noqa: B008
    """Writes the store of profile `slice` into `out`; resumes an interrupted run."""
    source = SliceSource(slice_config(num_layers), seed)
    command: dict[str, str | int] = {"command": "slice", "layers": num_layers, "seed": seed}
    return StoreBuilder(source, settings, command).build(Path(out))
