"""The account of a checkpoint's resident tensors before anything is written: each is used as it is, or the checkpoint is refused.

Routed experts and n-gram tables are checked where they are read; tensors of a vision tower are left out by their names.
"""

from collections.abc import Mapping

import numpy as np

from workbench.errors import BadInput
from workbench.stores.checkpoint import Checkpoint
from workbench.stores.safetensors_file import TensorInfo
from workbench.stores.trunk import TrunkTensor, mtp_tensors, trunk_tensors

_FLOATS = ("BF16", "F16", "F32")
_INTEGERS = {"I64": "<i8", "I32": "<i4"}


def check_account(checkpoint: Checkpoint) -> None:
    """Raises BadInput naming the first resident tensor that is missing, unknown, quantised, or of another shape or type.

    Reads headers, and the few integers of the n-gram hash, which must be those that follow from the configuration.
    """
    geometry, found = checkpoint.geometry, checkpoint.resident
    wanted = trunk_tensors(geometry) | (mtp_tensors(geometry) if geometry.mtp_num_hidden_layers else {})
    _check_names(checkpoint, found, wanted)
    for name, tensor in wanted.items():
        _check_tensor(checkpoint, name, found[name], tensor)


def _check_names(checkpoint: Checkpoint, found: Mapping[str, TensorInfo], wanted: Mapping[str, TrunkTensor]) -> None:
    for name in found:
        base = name.rpartition(".")[0]
        if name.endswith((".scales", ".biases")) and f"{base}.weight" in wanted:
            raise BadInput(
                f"{checkpoint.folder}: {base} is quantised; only routed experts and n-gram tables may be: "
                "convert the other tensors to bfloat16"
            )
    if missing := [name for name in wanted if name not in found]:
        tied = (
            " (a head that is tied to the embedding is not supported: store it twice)" if missing[0] == "lm_head.weight" else ""
        )
        raise BadInput(f"{checkpoint.folder}: tensor {missing[0]} is missing{_more(missing)}{tied}: is a shard missing?")
    if unknown := [name for name in found if name not in wanted]:
        raise BadInput(f"{checkpoint.folder}: tensor {unknown[0]}{_more(unknown)} is none of this model's tensors")


def _more(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""


def _check_tensor(checkpoint: Checkpoint, name: str, found: TensorInfo, wanted: TrunkTensor) -> None:
    kinds = tuple(_INTEGERS) if wanted.integers else _FLOATS
    if found.shape != wanted.info.shape or found.dtype not in kinds:
        raise BadInput(
            f"{checkpoint.folder}: tensor {name} is {found.dtype} {list(found.shape)}, not {kinds[0]} {list(wanted.info.shape)}"
        )
    if wanted.integers:
        stored = np.frombuffer(checkpoint.read_resident(name, 0, found.num_bytes).tobytes(), _INTEGERS[found.dtype])
        if tuple(stored.tolist()) != wanted.integers:
            raise BadInput(
                f"{checkpoint.folder}: {name} holds other integers than those that follow from config.json (seed, n-gram sizes)"
            )
