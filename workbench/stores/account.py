"""The account of a checkpoint's resident tensors before anything is written: each is used as it is, or the checkpoint is refused.

Routed experts and n-gram tables are checked where they are read; tensors of a vision tower are left out by their names.
"""

from collections.abc import Mapping

import numpy as np

from workbench.errors import BadInput
from workbench.stores.checkpoint import Checkpoint
from workbench.stores.codecs import bf16_to_float32
from workbench.stores.safetensors_file import TensorInfo
from workbench.stores.trunk import TrunkTensor, mtp_tensors, trunk_tensors

_FLOATS = ("BF16", "F16", "F32")
_FOLDED_MEAN = 0.675
"""Mean of gains between those of a release (about 0.2) and those to which 1 was added (about 1.15)."""
_INTEGERS = {"I64": "<i8", "I32": "<i4"}


def check_account(checkpoint: Checkpoint) -> None:
    """Raises BadInput naming the first resident tensor that is missing, unknown, quantised, or of another shape or type.

    Reads headers, the few integers of the n-gram hash, which must be those that follow from the configuration, and the gains of
    norms: the model adds 1 to a gain, and many conversions have added it already.
    """
    geometry, found = checkpoint.geometry, checkpoint.resident
    wanted = trunk_tensors(geometry) | (mtp_tensors(geometry) if geometry.mtp_num_hidden_layers else {})
    _check_names(checkpoint, found, wanted)
    for name, tensor in wanted.items():
        _check_tensor(checkpoint, name, found[name], tensor)
    gains = [name for name, tensor in wanted.items() if tensor.start == "zeros"]
    _check_gains(checkpoint, "model", [name for name in gains if not name.startswith("mtp.")])
    _check_gains(checkpoint, "mtp", [name for name in gains if name.startswith("mtp.")])


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


def _check_gains(checkpoint: Checkpoint, prefix: str, names: list[str]) -> None:
    found = checkpoint.resident
    values = [_floats(checkpoint.read_resident(name, 0, found[name].num_bytes), found[name].dtype) for name in names]
    if values and (mean := float(np.concatenate(values).mean())) > _FOLDED_MEAN:
        raise BadInput(
            f"{checkpoint.folder}: the gains of {len(names)} norms below {prefix}. have a mean of {mean:.3g}: 1 was added to "
            "them already, and the model adds it again; subtract 1 from each, or take a conversion that keeps them as released"
        )


def _floats(content: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "BF16":
        return bf16_to_float32(content.view("<u2"))
    return content.view("<f2" if dtype == "F16" else "<f4").astype(np.float32)
