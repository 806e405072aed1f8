"""transformers' unmodified Qwen4Exp class as the reference, and random checkpoints to compare on.

Pure torch: MLX-quantised experts are unpacked by the definition of the format, without MLX.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen4ExpForCausalLM, Qwen4ExpTextConfig

Tensors = dict[str, torch.Tensor]

_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
_NOT_OF_THE_CONFIG = {"quantization", "architectures", "dtype", "transformers_version"}


def unpack_affine(words: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, bits: int, group_size: int) -> torch.Tensor:
    """Float32 weights `[..., output, input]` of an MLX affine matrix: `scale * q + bias`, lowest bits of a word first.

    `words`: uint32 `[..., output, input * bits / 32]`; `scales` and `biases`: `[..., output, input / group_size]`. `bits` must
    divide 32.
    """
    unsigned = words.view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    quanta = torch.stack([(unsigned >> shift) & (2**bits - 1) for shift in range(0, 32, bits)], dim=-1).flatten(-2)
    groups = quanta.float().unflatten(-1, (-1, group_size))
    return (groups * scales.float().unsqueeze(-1) + biases.float().unsqueeze(-1)).flatten(-2)


def read_checkpoint(folder: Path) -> tuple[dict[str, Any], Tensors]:
    """Config and tensors of a checkpoint folder under transformers' names, experts fused, floats in float32, `mtp.*` included."""
    folder = Path(folder)
    config = json.loads((folder / "config.json").read_text())
    stored: Tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        stored |= load_file(path)
    stored = dict(_joined_tables(stored)) | dict(_fused_experts(stored, config))
    return config, {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in stored.items()}


def _joined_tables(stored: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """All tensors except routed experts, with split n-gram tables concatenated."""
    for name, tensor in stored.items():
        if ".mlp.switch_mlp." in name or ".mlp.experts." in name:
            continue
        base, is_split, part = name.partition("shard_")
        if not is_split:
            yield name, tensor
        elif part.startswith("0."):
            num_parts = sum(other.startswith(f"{base}shard_") for other in stored)
            yield base + "weight", torch.cat([stored[f"{base}shard_{index}.weight"] for index in range(num_parts)])


def _fused_experts(stored: Mapping[str, torch.Tensor], config: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    for base in sorted({name.partition(".mlp.")[0] for name in stored if ".mlp." in name}):
        if f"{base}.mlp.experts.gate_up_proj" in stored:
            yield from (
                (f"{base}.mlp.experts.{name}", stored[f"{base}.mlp.experts.{name}"]) for name in ("gate_up_proj", "down_proj")
            )
            continue
        gate, up, down = (_expert_stack(stored, config, f"{base}.mlp", projection) for projection in _PROJECTIONS)
        yield f"{base}.mlp.experts.gate_up_proj", torch.cat([gate, up], dim=1)
        yield f"{base}.mlp.experts.down_proj", down


def _expert_stack(stored: Mapping[str, torch.Tensor], config: Mapping[str, Any], base: str, projection: str) -> torch.Tensor:
    if f"{base}.switch_mlp.{projection}.weight" in stored:
        words, scales, biases = (stored[f"{base}.switch_mlp.{projection}.{part}"] for part in ("weight", "scales", "biases"))
        return unpack_affine(words, scales, biases, config["quantization"]["bits"], config["quantization"]["group_size"])
    return torch.stack([stored[f"{base}.experts.{expert}.{projection}.weight"] for expert in range(config["num_experts"])])


def load_reference(folder: Path) -> Qwen4ExpForCausalLM:
    """The checkpoint in `folder` as transformers' unmodified class, float32, for inference."""
    config, tensors = read_checkpoint(folder)
    values = {name: value for name, value in config.items() if name not in _NOT_OF_THE_CONFIG}
    model = Qwen4ExpForCausalLM(Qwen4ExpTextConfig(**values)).float().eval()
    model.load_state_dict({name: tensor for name, tensor in tensors.items() if not name.startswith("mtp.")}, strict=True)
    return model


# ---- random checkpoints -----------------------------------------------------------------------------------------------


def write_random_checkpoint(
    folder: Path,
    config: Mapping[str, Any],
    *,
    layout: str,
    num_shards: int = 1,
    split_tables: bool = False,
    seed: int = 0,
) -> None:
    """Writes a checkpoint of random weights with an MTP head, in the file layout of a trained checkpoint.

    Args:
        folder: created if missing.
        config: arguments of `Qwen4ExpTextConfig`; `quantization` (bits, group size) where the layout needs it.
        layout: `quantised` (MLX affine `switch_mlp`), `fused` (bf16 `experts.gate_up_proj`) or `single` (bf16, expert by expert).
        num_shards: number of safetensors files; with more than one, an index is written too.
        split_tables: store n-gram tables in `split_ngram_parts` parts.
        seed: seed of all weights.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors: Tensors = {}
    for name, tensor in _shapes(config).items():
        tensors |= _stored_form(name, _random(name, tensor, generator), config, layout, split_tables, generator)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["Qwen4ExpForCausalLM"]}))
    _save(folder, tensors, num_shards)


def _shapes(config: Mapping[str, Any]) -> Tensors:
    """All tensors of the class, and of the MTP head: one further QSA layer, a mixer, two projections and two norms."""
    values = {name: value for name, value in config.items() if name not in _NOT_OF_THE_CONFIG}
    tensors = dict(Qwen4ExpForCausalLM(Qwen4ExpTextConfig(**values)).state_dict())
    indexed = next(name.partition(".self_attn.")[0] for name in tensors if ".self_attn." in name)
    copies = {indexed: "mtp.layers.0", "model.hyper_connection_mixer": "mtp.hyper_connection_mixer"}
    for source, target in copies.items():
        tensors |= {name.replace(source, target): tensors[name] for name in list(tensors) if name.startswith(f"{source}.")}
    hidden, streams = config["hidden_size"], config["hc_count"]
    tensors |= {f"mtp.{name}.weight": torch.empty(hidden, hidden) for name in ("fc_embedding", "fc_hidden")}
    tensors["mtp.pre_fc_norm_embedding.weight"] = torch.empty(hidden)
    tensors["mtp.pre_fc_norm_hidden.weight"] = torch.empty(streams * hidden)
    return {name: tensor for name, tensor in tensors.items() if ".ple." not in name or not name.startswith("mtp.")}


def _random(name: str, like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Random values in a trained model's range, so that gates, routers and the indexer are neither flat nor saturated."""
    if not like.is_floating_point():
        return like
    noise = torch.randn(like.shape, generator=generator)
    if name.endswith("A_log"):
        return noise
    if like.ndim == 1:
        return 0.1 * noise + (1.0 if name.endswith(("dt_bias", "linear_attn.norm.weight")) else 0.0)
    if "conv1d" in name:
        return 0.3 * noise
    if "embed" in name:
        return noise
    return 1.5 * noise / like.shape[-1] ** 0.5


def _stored_form(
    name: str, tensor: torch.Tensor, config: Mapping[str, Any], layout: str, split_tables: bool, generator: torch.Generator
) -> Tensors:
    """One tensor as the layout stores it: bf16 matrices, float32 vectors, integers as they are."""
    base, is_expert, kind = name.partition("experts.")
    if is_expert:
        return _stored_experts(base, kind, tensor, config, layout, generator)
    if tensor.is_floating_point() and tensor.ndim > 1:
        tensor = tensor.bfloat16()
    if split_tables and name.endswith("ngram_embedding.weight"):
        parts = tensor.chunk(config["split_ngram_parts"])
        return {name.replace("weight", f"shard_{index}.weight"): part.contiguous() for index, part in enumerate(parts)}
    return {name: tensor.contiguous()}


def _stored_experts(
    base: str, kind: str, tensor: torch.Tensor, config: Mapping[str, Any], layout: str, generator: torch.Generator
) -> Tensors:
    if layout == "fused":
        return {f"{base}experts.{kind}": tensor.bfloat16()}
    halves = tensor.chunk(2, dim=1)
    matrices = {"gate_proj": halves[0], "up_proj": halves[1]} if kind == "gate_up_proj" else {"down_proj": tensor}
    if layout == "single":
        return {
            f"{base}experts.{expert}.{projection}.weight": matrix.bfloat16().contiguous()
            for projection, stack in matrices.items()
            for expert, matrix in enumerate(stack)
        }
    return {
        f"{base}switch_mlp.{projection}.{part}": value
        for projection, stack in matrices.items()
        for part, value in _random_affine(stack.shape, config["quantization"], generator).items()
    }


def _random_affine(shape: torch.Size, codec: Mapping[str, int], generator: torch.Generator) -> Tensors:
    """Random quantised words with scales and biases that centre the weights around 0; no quantiser is needed."""
    experts, output_size, input_size = shape
    bits, groups = codec["bits"], input_size // codec["group_size"]
    words = torch.randint(-(2**31), 2**31, (experts, output_size, input_size * bits // 32), generator=generator)
    spread = 1.5 / input_size**0.5 / 2 ** (bits - 2)
    scales = (spread * (1 + 0.2 * torch.randn(experts, output_size, groups, generator=generator))).bfloat16()
    biases = (-scales.float() * (2**bits - 1) / 2).bfloat16()
    return {"weight": words.to(torch.int32).view(torch.uint32), "scales": scales, "biases": biases}


def _save(folder: Path, tensors: Tensors, num_shards: int) -> None:
    names = sorted(tensors)
    if num_shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map: dict[str, str] = {}
    for shard in range(num_shards):
        file = f"model-{shard + 1:05d}-of-{num_shards:05d}.safetensors"
        part = names[shard::num_shards]
        save_file({name: tensors[name] for name in part}, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
