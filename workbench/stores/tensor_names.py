"""Owners of a checkpoint's tensors. Names are those of the text model in transformers; known prefixes of the official
multimodal checkpoint and of its MLX conversions are taken off first.
"""

import re
from dataclasses import dataclass, field

_DROPPED = re.compile(r"^(model\.)?(visual|vision_tower)\.")
_PREFIXES = (("model.language_model.", "model."), ("language_model.", ""))
_EXPERT = re.compile(r"^(model|mtp)\.layers\.(\d{1,4})\.mlp\.(?:switch_mlp|experts)\.")
_NGRAM = re.compile(
    r"^model\.layers\.(\d{1,4})\.ple\.ple_embedding\.ngram_embedding\.(?:shard_(\d{1,5})\.)?(weight|scales|biases)$"
)


def text_name(name: str) -> str | None:
    """The text model's name of a tensor; None for one of the vision tower."""
    if _DROPPED.match(name):
        return None
    for prefix, replacement in _PREFIXES:
        if name.startswith(prefix):
            return replacement + name.removeprefix(prefix)
    return name


@dataclass(kw_only=True)
class TensorGroups:
    """Tensors of a checkpoint by owner: prefixes of experts, names of n-gram tables and of resident tensors."""

    experts: dict[int, str] = field(default_factory=dict)
    """Layer index to the prefix of its expert tensors, e.g. `model.layers.3.mlp.`; the MTP head's layer follows the trunk's."""
    ngrams: dict[int, dict[tuple[str, int], str]] = field(default_factory=dict)
    """Layer index to (weight, scales or biases; shard) to name."""
    resident: list[str] = field(default_factory=list)
    """Resident tensors, sorted: neither routed experts nor n-gram tables."""


def group_names(names: list[str], num_hidden_layers: int) -> TensorGroups:
    """Sorts text-model names by owner."""
    groups = TensorGroups()
    for name in sorted(names):
        if match := _EXPERT.match(name):
            layer = int(match[2]) + (num_hidden_layers if match[1] == "mtp" else 0)
            groups.experts[layer] = f"{match[1]}.layers.{match[2]}.mlp."
        elif match := _NGRAM.match(name):
            groups.ngrams.setdefault(int(match[1]), {})[match[3], int(match[2] or 0)] = name
        else:
            groups.resident.append(name)
    return groups
