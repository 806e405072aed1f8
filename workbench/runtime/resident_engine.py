"""The engine that streams nothing: the run that a streamed one must equal."""

import hashlib
from pathlib import Path
from typing import Protocol

import mlx.core as mx
import numpy as np
import psutil

from workbench.address_space import check_address_space
from workbench.errors import UnmetPrerequisite
from workbench.loading.transfer import Transfer
from workbench.loading.wait import Loading
from workbench.readers import NullReader, RealClock
from workbench.runtime.engine import Engine, Members
from workbench.runtime.evaluation import Evaluation
from workbench.runtime.lane import Lane
from workbench.runtime.layerwise import load_layerwise
from workbench.runtime.resident import LOADED_PER_STORED, MLX_CACHE_BYTES, load_resident
from workbench.scheduling.scheduler import Scheduler
from workbench.schema import EventLog
from workbench.stores import Store, open_to_run
from workbench.stores.manifest import EXPERTS_NAME
from workbench.stores.regions import file_sha256
from workbench.units import format_bytes


class WholeExperts(Protocol):
    """Routed experts that are in memory when they are asked for."""

    def run(self, layer: int, hidden: mx.array, ids: mx.array) -> mx.array:
        """The experts `ids [T, k]` of `layer` on `hidden [T, H]`: `[T, k, H]`."""


class WholeRows(Protocol):
    """N-gram rows that are in memory."""

    def rows(self, layer: int, row_ids: np.ndarray) -> mx.array:
        """The rows `row_ids [T, heads]` of `layer`, float32 `[T, ple_embed_dim]`, heads side by side."""


class ResidentEngine(Engine):
    """Nothing is streamed: a checkpoint folder whole in memory, or a made store's layers read whole, one at a time."""

    def __init__(self, folder: Path, log: EventLog) -> None:
        mx.set_cache_limit(MLX_CACHE_BYTES)
        store = open_to_run(folder) if (folder / EXPERTS_NAME).exists() else None
        _check_memory(folder, store)
        before = mx.get_active_memory()
        experts: WholeExperts
        rows: WholeRows
        if store is not None:
            model, experts, rows = load_layerwise(store)
            self.identity = {"store_digest": store.digest, "checkpoint_sha256": store.manifest.source.sha256}
        else:
            model, experts, rows = load_resident(folder)
            self.identity = {"checkpoint_sha256": _digest(folder)}
        self.resident_bytes, self.cache_bytes = mx.get_active_memory() - before, 0
        evaluation = Evaluation(log)
        transfer = Transfer(Scheduler([]), NullReader(), {}, log, RealClock(), evaluation.finish_all)
        super().__init__(model, _Experts(experts), _Rows(rows), transfer, evaluation, log)


class _Experts:
    """Experts that need no bytes, as an engine asks for them."""

    def __init__(self, experts: WholeExperts) -> None:
        self._experts = experts

    def begin_pass(self, lane: Lane) -> None:
        """Everything is there."""

    def group(self, layer: int, members: Members) -> "_Group":
        """The experts that the routers of `members` chose."""
        return _Group(self._experts, layer, members)


class _Group:
    """The experts of one layer, on the rows of one lane or of several that meet there."""

    def __init__(self, experts: WholeExperts, layer: int, members: Members) -> None:
        self._experts, self._layer, self._members = experts, layer, members

    def run(self) -> Loading[list[mx.array]]:
        """Values `[T, k, H]` of each lane's rows."""
        yield from ()
        routes = [routed.route for _, routed in self._members]
        if len(routes) == 1:
            return [self._experts.run(self._layer, routes[0].hidden, routes[0].ids)]
        hidden, ids = mx.concatenate([each.hidden for each in routes]), mx.concatenate([each.ids for each in routes])
        ends = np.cumsum([len(each.ids) for each in routes])[:-1].tolist()
        parts: list[mx.array] = list(mx.split(self._experts.run(self._layer, hidden, ids), ends))
        return parts

    def leave(self, lane: Lane) -> None:
        """A lane was cancelled: the others go on without it."""
        self._members = [member for member in self._members if member[0] is not lane]


class _Rows:
    """N-gram rows that need no bytes, as an engine asks for them."""

    def __init__(self, rows: WholeRows) -> None:
        self._rows = rows

    def announce(self, lane: Lane, layer: int, row_ids: np.ndarray) -> None:
        """A lane's pass will read the rows `[T, heads]` of `layer`."""
        lane.rows[layer] = row_ids

    def load(self, lane: Lane, layer: int) -> Loading[list[mx.array]]:
        """The announced rows, heads side by side: float32 `[T, ple_embed_dim]`."""
        yield from ()
        return [self._rows.rows(layer, lane.rows.pop(layer))]


def _check_memory(folder: Path, store: Store | None) -> None:
    """Raises UnmetPrerequisite, with both figures, when a resident run does not fit in memory.

    A checkpoint is held whole; of a store the trunk, the n-gram tables and one layer's experts.
    """
    if store is None:
        num_bytes = LOADED_PER_STORED * sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    else:
        geometry = store.geometry
        tables = sum(ngrams.num_pages * ngrams.page_bytes for ngrams in store.ngrams.values())
        layer = LOADED_PER_STORED * geometry.num_experts * geometry.record_bytes
        num_bytes = LOADED_PER_STORED * store.resident_path.stat().st_size + tables + layer
    check_address_space(num_bytes)
    if num_bytes > (available := psutil.virtual_memory().available):
        raise UnmetPrerequisite(
            f"a resident run of {folder} takes up to {format_bytes(num_bytes)} of memory, {format_bytes(available)} are available"
        )


def _digest(checkpoint: Path) -> str:
    """The digest that a store of the checkpoint names as its source: of the one file, or of the sorted digests of all shards."""
    digests = sorted(file_sha256(path) for path in checkpoint.glob("*.safetensors"))
    return (digests[0] if len(digests) == 1 else hashlib.sha256(b"".join(digests)).digest()).hex()
