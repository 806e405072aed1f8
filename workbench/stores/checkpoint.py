"""A checkpoint folder read in slices: a single safetensors file or shards, only headers are held in memory.

Experts may be MLX-quantised and stacked (`switch_mlp`), stacked bf16 (`switch_mlp`, or `experts.gate_up_proj` with gate above
up), or one tensor per expert. Unquantised experts are quantised here by `mx.quantize`, so that pack and any other reader of the
checkpoint see the same values. The n-gram table may be whole or split into shards.
"""

import copy
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from workbench.errors import BadInput
from workbench.files import read_json_object
from workbench.geometry import DOWN, GATE, Codec, Geometry
from workbench.stores.codecs import float32_to_bf16
from workbench.stores.manifest import SourceIdentity
from workbench.stores.regions import file_sha256
from workbench.stores.safetensors_file import SafetensorsFile, TensorInfo
from workbench.stores.source import Matrices
from workbench.stores.tensor_names import group_names, text_name

INDEX_NAME = "model.safetensors.index.json"
TOKENIZER_NAMES = ("tokenizer.json", "tokenizer_config.json")
_SMALL_NAMES = (*TOKENIZER_NAMES, "generation_config.json")


class Checkpoint:
    """Tensors of a Qwen4Exp checkpoint by owner. Use as a context manager."""

    def __init__(self, folder: Path, *, codec: Codec | None = None) -> None:
        """Reads headers only.

        Args:
            folder: the checkpoint.
            codec: codec for experts that are not quantised yet; default 4 bits in groups of 64.
        """
        self.folder = Path(folder)
        self.geometry = Geometry.from_folder(self.folder)
        self.config: dict[str, Any] = read_json_object(self.folder / "config.json")
        self.files = [SafetensorsFile(path) for path in _shard_paths(self.folder)]
        self._identity: SourceIdentity | None = None
        self._where: dict[str, tuple[SafetensorsFile, str]] = {}
        for file in self.files:
            self._add_names(file)
        self._groups = group_names(list(self._where), self.geometry.num_hidden_layers)
        self._settle_codec(codec)
        self._settle_mtp()
        self._check_layers()

    def _add_names(self, file: SafetensorsFile) -> None:
        for stored in file.tensors:
            name = text_name(stored)
            if name in self._where:
                raise BadInput(f"{file.path}: tensor {stored} occurs twice in {self.folder}")
            if name is not None:
                self._where[name] = (file, stored)

    def _settle_codec(self, codec: Codec | None) -> None:
        settings = self.config.get("quantization") or self.config.get("quantization_config")
        if settings is None:
            self.geometry = replace(self.geometry, codec=codec or Codec())
        elif not isinstance(settings, dict) or settings.get("mode", "affine") != "affine":
            raise BadInput(f"{self.folder}: quantised other than by MLX affine; use a bf16 or MLX affine checkpoint")
        elif codec not in (None, self.geometry.codec):
            raise BadInput(f"{self.folder}: already quantised with {self.geometry.codec}; leave bits and group size out")

    def _settle_mtp(self) -> None:
        """Conversions often drop the MTP head that their config still names: the store's geometry has none then."""
        has_experts = self.geometry.num_hidden_layers in self._groups.experts
        has_others = any(name.startswith("mtp.") for name in self._groups.resident)
        if self.geometry.mtp_num_hidden_layers and not has_experts and not has_others:
            self.geometry = replace(self.geometry, mtp_num_hidden_layers=0)
        elif self.geometry.mtp_num_hidden_layers and not (has_experts and has_others):
            lacks = "other tensors" if has_experts else "experts"
            raise BadInput(f"{self.folder}: the MTP head lacks its {lacks}: is a shard missing?")

    def _check_layers(self) -> None:
        geometry = self.geometry
        if missing := set(range(geometry.num_hidden_layers)) - set(self._groups.experts):
            raise BadInput(f"{self.folder}: no expert tensors of layer {min(missing)}: is a shard missing?")
        if missing := set(geometry.ple_layers) - set(self._groups.ngrams):
            raise BadInput(f"{self.folder}: no n-gram table of layer {min(missing)}: is a shard missing?")
        if extra := [layer for layer in self._groups.experts if layer >= geometry.num_expert_layers]:
            raise BadInput(f"{self.folder}: expert tensors of layer {extra[0]}, its config.json has fewer layers")

    # ---- contents --------------------------------------------------------------------------------------------------

    @property
    def expert_layers(self) -> tuple[int, ...]:
        """Layers with routed experts; the MTP head's only where the checkpoint kept it."""
        return tuple(sorted(self._groups.experts))

    @property
    def resident(self) -> dict[str, TensorInfo]:
        """Every tensor that is neither routed experts nor n-gram tables, sorted by name."""
        return {name: _as_torch_has_it(name, self._info(name)) for name in self._groups.resident}

    @property
    def num_tensors(self) -> int:
        """Tensors of all shards."""
        return sum(len(file.tensors) for file in self.files)

    @property
    def num_bytes(self) -> int:
        """Bytes of all shards."""
        return sum(file.num_bytes for file in self.files)

    def store_config(self) -> dict[str, Any]:
        """The configuration of a store of this checkpoint: with the codec, and without an MTP head that the checkpoint lacks."""
        config = copy.deepcopy(self.config)
        if not (config.get("quantization") or config.get("quantization_config")):
            codec = self.geometry.codec
            config["quantization"] = {"bits": codec.bits, "group_size": codec.group_size, "mode": "affine"}
        if not self.geometry.mtp_num_hidden_layers:
            config.get("text_config", config)["mtp_num_hidden_layers"] = 0
        return config

    def small_files(self) -> dict[str, bytes]:
        """Tokenizer files and the generation configuration, by name."""
        return {name: (self.folder / name).read_bytes() for name in _SMALL_NAMES if (self.folder / name).is_file()}

    def identify(self, advance: Callable[[int], None] = lambda num_bytes: None) -> None:
        """Reads every file and sets `identity`: the digest of the one file, or of the sorted digests of all shards."""
        digests = sorted(file_sha256(file.path, advance) for file in self.files)
        digest = digests[0] if len(digests) == 1 else hashlib.sha256(b"".join(digests)).digest()
        self._identity = SourceIdentity(sha256=digest.hex(), num_bytes=self.num_bytes, num_tensors=self.num_tensors)

    @property
    def identity(self) -> SourceIdentity:
        """Identity of the checkpoint, written into its store. `identify` must run first."""
        if self._identity is None:
            raise ValueError("identify() has not been called")
        return self._identity

    # ---- bytes ----------------------------------------------------------------------------------------------------

    def _info(self, name: str) -> TensorInfo:
        file, stored = self._where[name]
        return file.tensors[stored]

    def _read(self, name: str, offset: int, num_bytes: int) -> np.ndarray:
        file, stored = self._where[name]
        return file.read(stored, offset, num_bytes)

    def read_resident(self, name: str, offset: int, num_bytes: int) -> np.ndarray:
        """Bytes of a resident tensor, uint8."""
        return self._read(name, offset, num_bytes)

    def _expect(self, name: str, shape: tuple[int, ...], dtypes: tuple[str, ...]) -> TensorInfo:
        if name not in self._where:
            raise BadInput(f"{self.folder}: tensor {name} is missing: is a shard missing?")
        info = self._info(name)
        if info.shape != shape or info.dtype not in dtypes:
            raise BadInput(f"{self.folder}: tensor {name} is {info.dtype} {list(info.shape)}, not {dtypes[0]} {list(shape)}")
        return info

    def component(self, layer: int, component: str, first: int, stop: int) -> Matrices:
        """Quantised gate, up or down of experts `first` to `stop` of a layer: `[n, output, ...]`."""
        prefix = self._groups.experts[layer]
        stacked = f"{prefix}switch_mlp.{component}_proj"
        output_size, input_size = self.geometry.component_shape(component)
        shape = (self.geometry.num_experts, output_size, input_size)
        if f"{stacked}.scales" in self._where:
            return self._quantised(stacked, shape, self.geometry.codec, first, stop)
        return _quantize(self._plain(prefix, component, shape, first, stop), self.geometry.codec)

    def _quantised(self, base: str, shape: tuple[int, ...], codec: Codec, first: int, stop: int) -> Matrices:
        words, scales, biases = (
            self._rows(f"{base}.{kind}", (*shape[:-1], columns), (dtype,), first, stop)
            for kind, dtype, columns in _affine_parts(codec, shape[-1])
        )
        return words.view("<u4"), scales.view("<u2"), biases.view("<u2")

    def _rows(self, name: str, shape: tuple[int, ...], dtypes: tuple[str, ...], first: int, stop: int) -> np.ndarray:
        info = self._expect(name, shape, dtypes)
        content = self._read(name, first * info.row_bytes, (stop - first) * info.row_bytes)
        return content.reshape(stop - first, *shape[1:-1], -1)

    def _plain(self, prefix: str, component: str, shape: tuple[int, ...], first: int, stop: int) -> np.ndarray:
        """Unquantised weights as bf16 bit patterns `[n, output, input]`."""
        experts, output_size, input_size = shape
        fused = f"{prefix}experts.{'down_proj' if component == DOWN else 'gate_up_proj'}"
        stacked = f"{prefix}switch_mlp.{component}_proj.weight"
        if fused in self._where and component != DOWN:
            info = self._expect(fused, (experts, 2 * output_size, input_size), _FLOATS)
            half = info.row_bytes // 2
            starts = [expert * info.row_bytes + (0 if component == GATE else half) for expert in range(first, stop)]
            content = np.concatenate([self._read(fused, start, half) for start in starts])
        elif (name := fused if fused in self._where else stacked) in self._where:
            info = self._expect(name, shape, _FLOATS)
            content = self._read(name, first * info.row_bytes, (stop - first) * info.row_bytes)
        else:
            names = [f"{prefix}experts.{expert}.{component}_proj.weight" for expert in range(first, stop)]
            infos = [self._expect(name, (output_size, input_size), _FLOATS) for name in names]
            contents = [self._read(name, 0, info.num_bytes) for name, info in zip(names, infos, strict=True)]
            return np.stack([_as_bf16(c, i.dtype).reshape(i.shape) for c, i in zip(contents, infos, strict=True)])
        return _as_bf16(content, info.dtype).reshape(stop - first, output_size, input_size)

    # ---- n-gram rows ----------------------------------------------------------------------------------------------

    def ngram_is_quantised(self, layer: int) -> bool:
        """Whether a layer's n-gram table is MLX-quantised already."""
        return ("scales", 0) in self._groups.ngrams[layer]

    def ngram_rows(self, layer: int, first: int, stop: int) -> np.ndarray:
        """Rows of an unquantised n-gram table as bf16 bit patterns `[n, row width]`."""
        pieces = self._ngram_pieces(layer, "weight", self.geometry.ple_row_width, _FLOATS, first, stop)
        return np.concatenate([_as_bf16(content.reshape(-1), dtype).reshape(len(content), -1) for content, dtype in pieces])

    def ngram_matrices(self, layer: int, codec: Codec, first: int, stop: int) -> Matrices:
        """Quantised rows of an n-gram table: as stored where it is quantised, else by `mx.quantize`."""
        if not self.ngram_is_quantised(layer):
            return _quantize(self.ngram_rows(layer, first, stop), codec)
        words, scales, biases = (
            np.concatenate([content for content, _ in self._ngram_pieces(layer, kind, columns, (dtype,), first, stop)])
            for kind, dtype, columns in _affine_parts(codec, self.geometry.ple_row_width)
        )
        return words.view("<u4"), scales.view("<u2"), biases.view("<u2")

    def _ngram_pieces(
        self, layer: int, kind: str, columns: int, dtypes: tuple[str, ...], first: int, stop: int
    ) -> Iterator[tuple[np.ndarray, str]]:
        shards = {shard: name for (part, shard), name in self._groups.ngrams[layer].items() if part == kind}
        expected = self.geometry.ple_num_rows(self.geometry.ple_layers.index(layer))
        infos = [self._info(shards[shard]) for shard in sorted(shards)]
        num_rows = sum(info.shape[0] for info in infos if info.shape)
        if sorted(shards) != list(range(len(shards))) or num_rows != expected:
            raise BadInput(
                f"{self.folder}: n-gram table of layer {layer}: {len(shards)} shards of {num_rows} rows, "
                f"its config.json needs {expected}: is a shard missing?"
            )
        start = 0
        for shard, info in enumerate(infos):
            low, high = max(first, start), min(stop, start + info.shape[0])
            if low < high:
                shape = (info.shape[0], columns)
                yield self._rows(shards[shard], shape, dtypes, low - start, high - start), info.dtype
            start += info.shape[0]

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *_: object) -> None:
        for file in self.files:
            file.close()


_FLOATS = ("BF16", "F16", "F32")


def _as_torch_has_it(name: str, info: TensorInfo) -> TensorInfo:
    """MLX conversions keep a depthwise convolution as `[C, taps, 1]`, torch as `[C, 1, taps]`: the bytes are the same."""
    if name.endswith("conv1d.weight") and len(info.shape) == 3 and info.shape[2] == 1:
        return replace(info, shape=(info.shape[0], 1, info.shape[1]))
    return info


def _affine_parts(codec: Codec, width: int) -> tuple[tuple[str, str, int], ...]:
    """Suffix, dtype and columns of the three tensors of a quantised matrix of `width` columns."""
    groups = width // codec.group_size
    return ("weight", "U32", width * codec.bits // 32), ("scales", "BF16", groups), ("biases", "BF16", groups)


def _as_bf16(content: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "BF16":
        return content.view("<u2")
    return float32_to_bf16(content.view("<f2" if dtype == "F16" else "<f4").astype(np.float32))


def _quantize(weights: np.ndarray, codec: Codec) -> Matrices:
    import mlx.core as mx

    words, scales, biases = mx.quantize(mx.array(weights).view(mx.bfloat16), codec.group_size, codec.bits)
    return np.array(words), np.array(scales.view(mx.uint16)), np.array(biases.view(mx.uint16))


def _shard_paths(folder: Path) -> list[Path]:
    index = folder / INDEX_NAME
    if not index.exists():
        paths = sorted(folder.glob("*.safetensors"))
        if not paths:
            raise BadInput(f"no *.safetensors in {folder}: not a checkpoint folder")
        return paths
    try:
        names = set(read_json_object(index)["weight_map"].values())
    except (KeyError, TypeError, AttributeError):
        raise BadInput(f"{index}: not a safetensors index (copy it again)") from None
    if bad := [name for name in names if not isinstance(name, str) or Path(name).name != name]:
        raise BadInput(f"{index}: shard {bad[0]!r} is not a plain file name")
    if missing := sorted(name for name in names if not (folder / name).exists()):
        raise BadInput(f"{folder}: shard {missing[0]} is missing ({len(missing)} of {len(names)}): copy it")
    return [folder / name for name in sorted(names)]
