"""The resident path: a checkpoint's tensors stacked in memory, never a store. What streaming must equal, bit for bit."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import mlx.core as mx
import numpy as np

from workbench.errors import BadInput
from workbench.geometry import COMPONENTS, DOWN, GATE, Geometry
from workbench.model.experts import QuantizedMatrix, stacked_expert_forward
from workbench.model.model import Model
from workbench.model.ngram import row_ids
from workbench.model.state import SequenceState
from workbench.runtime.forward import Done, ForwardPass, Routed, RowsNeeded, forward
from workbench.stores.tensor_names import text_name
from workbench.units import MIB

MLX_CACHE_BYTES = 64 * MIB
"""Freed buffers that MLX may keep; without a limit they would grow beside the budget."""
LOADED_PER_STORED = 3
"""Bytes that loading takes for each byte of a bfloat16 checkpoint, at most: float32 weights, some of which are held twice."""
_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_TABLE = re.compile(r"model\.layers\.(\d+)\.ple\.ple_embedding\.ngram_embedding\.(?:shard_(\d+)\.)?weight")
_ROUTED = re.compile(r"\.mlp\.(switch_mlp|experts)\.")


class ResidentExperts:
    """Every routed expert as stacks `[experts, ...]` by layer."""

    def __init__(self, stacks: Mapping[int, Mapping[str, QuantizedMatrix]]) -> None:
        self._stacks = stacks

    def run(self, layer: int, hidden: mx.array, ids: mx.array) -> mx.array:
        """The experts `ids [T, k]` of `layer` on `hidden [T, H]`: `[T, k, H]`."""
        return stacked_expert_forward(hidden, ids, *(self._stacks[layer][component] for component in COMPONENTS))


class ResidentRows:
    """Every n-gram table, in its stored type, by layer."""

    def __init__(self, tables: Mapping[int, mx.array]) -> None:
        self._tables = tables

    def rows(self, layer: int, row_ids: np.ndarray) -> mx.array:
        """The rows `row_ids [T, heads]` of `layer`, float32 `[T, ple_embed_dim]`, heads side by side."""
        return self._tables[layer][mx.array(row_ids)].astype(mx.float32).reshape(len(row_ids), -1)


def run_forward(
    model: Model,
    state: SequenceState,
    tokens: np.ndarray,
    experts: ResidentExperts,
    rows: ResidentRows,
    *,
    num_logits: int | None = None,
) -> mx.array:
    """Logits of a forward pass over `tokens [T]` whose experts and rows are in memory, without an engine or its transactions."""
    loaded = {layer: rows.rows(layer, ids) for layer, ids in row_ids(model.geometry, tokens, state.context).items()}
    return run_stages(forward(model, state, tokens, num_logits=num_logits), experts, loaded)


def run_stages(stages: ForwardPass, experts: ResidentExperts, rows: Mapping[int, mx.array]) -> mx.array:
    """Logits of a pass or a draft. `rows`: n-gram rows `[T, ple_embed_dim]` by layer; a draft needs none."""
    answer = None
    while True:
        match stages.send(answer):
            case RowsNeeded(layer):
                answer = rows[layer]
            case Routed(layer, route):
                answer = experts.run(layer, route.hidden, route.ids)
            case Done(logits):
                return logits


def load_resident(folder: Path) -> tuple[Model, ResidentExperts, ResidentRows]:
    """The model in a checkpoint folder, all of it in memory.

    Routed experts may be MLX-quantised stacks, fused bf16 or bf16 expert by expert (quantised here as a pack does); shards and
    split n-gram tables are joined. Raises BadInput when a tensor or shard is missing.
    """
    geometry = Geometry.from_folder(folder)
    tensors = read_tensors(Path(folder))
    trunk = {name: array for name, array in tensors.items() if not _ROUTED.search(name) and not _TABLE.fullmatch(name)}
    model = Model(geometry, trunk)
    expert_layers = range(geometry.num_expert_layers if model.mtp else geometry.num_hidden_layers)
    stacks = {layer: dict(_layer_stacks(geometry, tensors, layer)) for layer in expert_layers}
    tables = {layer: _table(tensors, layer) for layer in geometry.ple_layers}
    return model, ResidentExperts(stacks), ResidentRows(tables)


def read_tensors(folder: Path) -> dict[str, mx.array]:
    """The text model's tensors of a single or sharded checkpoint, read when first used.

    Raises BadInput when a file is missing.
    """
    index = folder / _INDEX
    shards = sorted(set(json.loads(index.read_text())["weight_map"].values())) if index.exists() else [_SINGLE]
    tensors: dict[str, mx.array] = {}
    for shard in shards:
        if not (folder / shard).is_file():
            raise BadInput(f"{folder} lacks {shard}: not a whole checkpoint")
        tensors |= load_tensors(folder / shard)
    return {text: array for name, array in tensors.items() if (text := text_name(name)) is not None}


def load_tensors(path: Path) -> dict[str, mx.array]:
    """The tensors of one safetensors file, each read when first used."""
    tensors = mx.load(str(path))
    assert isinstance(tensors, dict)
    return tensors


def _layer_stacks(geometry: Geometry, tensors: Mapping[str, mx.array], layer: int) -> Iterator[tuple[str, QuantizedMatrix]]:
    codec = geometry.codec
    for component in COMPONENTS:
        words, scales, biases = _stack(geometry, tensors, layer, component)
        # float32 scales: MLX would convert the whole stack at each product
        matrix = QuantizedMatrix(words, scales.astype(mx.float32), biases.astype(mx.float32), codec.bits, codec.group_size)
        mx.eval(matrix.words, matrix.scales, matrix.biases)
        yield component, matrix


def _stack(geometry: Geometry, tensors: Mapping[str, mx.array], layer: int, component: str) -> tuple[mx.array, ...]:
    mtp = layer - geometry.num_hidden_layers
    prefix = f"model.layers.{layer}.mlp." if mtp < 0 else f"mtp.layers.{mtp}.mlp."
    quantised = f"{prefix}switch_mlp.{component}_proj."
    if quantised + "weight" in tensors:
        return tuple(_tensor(tensors, quantised + part) for part in ("weight", "scales", "biases"))
    plain = _plain_stack(geometry, tensors, prefix, component).astype(mx.bfloat16)
    return tuple(mx.quantize(plain, group_size=geometry.codec.group_size, bits=geometry.codec.bits))


def _plain_stack(geometry: Geometry, tensors: Mapping[str, mx.array], prefix: str, component: str) -> mx.array:
    if f"{prefix}experts.down_proj" in tensors:
        if component == DOWN:
            return tensors[f"{prefix}experts.down_proj"]
        gate, up = mx.split(_tensor(tensors, f"{prefix}experts.gate_up_proj"), 2, axis=1)
        return gate if component == GATE else up
    names = [f"{prefix}experts.{expert}.{component}_proj.weight" for expert in range(geometry.num_experts)]
    return mx.stack([_tensor(tensors, name) for name in names])


def _table(tensors: Mapping[str, mx.array], layer: int) -> mx.array:
    parts = {int(match[2] or 0): name for name in tensors if (match := _TABLE.fullmatch(name)) and int(match[1]) == layer}
    if not parts or sorted(parts) != list(range(max(parts) + 1)):
        raise BadInput(f"ngram_embedding of layer {layer} has parts {sorted(parts)}: some are missing")
    table = mx.concatenate([tensors[parts[part]] for part in sorted(parts)])
    mx.eval(table)
    return table


def _tensor(tensors: Mapping[str, mx.array], name: str) -> mx.array:
    try:
        return tensors[name]
    except KeyError:
        raise BadInput(f"the checkpoint lacks the tensor {name}") from None
