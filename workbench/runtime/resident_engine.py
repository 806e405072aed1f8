"""The engine that streams nothing: what a streamed run must equal."""

import hashlib
from pathlib import Path
from types import TracebackType
from typing import Self

import mlx.core as mx

from workbench.model.model import Model
from workbench.runtime.evaluation import Evaluation
from workbench.runtime.forward import ExpertSource, RowSource
from workbench.runtime.layerwise import load_layerwise
from workbench.runtime.resident import MLX_CACHE_BYTES, load_resident
from workbench.runtime.step import Step
from workbench.schema import EventLog
from workbench.stores import open_store
from workbench.stores.manifest import EXPERTS_NAME


class ResidentEngine:
    """Nothing is streamed: a checkpoint folder whole in memory, or a made store's layers read whole, one at a time."""

    def __init__(self, folder: Path, log: EventLog) -> None:
        mx.set_cache_limit(MLX_CACHE_BYTES)
        self.log = log
        self.step = Step()
        self.evaluation = Evaluation(log, self.step)
        before = mx.get_active_memory()
        self.model: Model
        self.experts: ExpertSource
        self.rows: RowSource
        if (folder / EXPERTS_NAME).exists():
            store = open_store(folder)
            self.model, self.experts, self.rows = load_layerwise(store)
            self.identity = {"store_digest": store.digest}
        else:
            self.model, self.experts, self.rows = load_resident(folder)
            self.identity = {"checkpoint_sha256": _digest(folder)}
        self.resident_bytes = mx.get_active_memory() - before
        """Weights as they are held in memory."""

    @property
    def cache_bytes(self) -> int:
        """There is no cache."""
        return 0

    def settle(self) -> None:
        """Nothing is leased."""

    def abandon(self, request: int) -> None:
        """Nothing is leased."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        return None


def _digest(checkpoint: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(checkpoint.glob("*.safetensors")):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
