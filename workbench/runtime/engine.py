"""Engines: a model with its experts and rows, resident from a checkpoint or streamed from a store."""

import hashlib
import math
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import mlx.core as mx
import psutil
from pydantic import Field

from workbench import policies
from workbench.config import Config
from workbench.errors import BadInput
from workbench.geometry import Geometry
from workbench.model.model import Model
from workbench.readers import Clock, Reader, RealClock, open_reader
from workbench.runtime.budget import CacheBudget, plan_cache
from workbench.runtime.experts import StreamedExperts
from workbench.runtime.pool import PagePool, RecordPool, slot_stride_bytes
from workbench.runtime.records import RecordSource
from workbench.runtime.resident import load_resident, load_tensors
from workbench.runtime.rows import PageSource, StreamedRows
from workbench.runtime.step import Step
from workbench.runtime.transfer import Transfer
from workbench.scheduling.lanes import LaneConfig, SchedulerConfig
from workbench.scheduling.pool import PAGE_BIT, RECORD_BITS, Pool
from workbench.scheduling.scheduler import Scheduler
from workbench.scheduling.slots import SlotTable
from workbench.schema import EventLog
from workbench.stores import Store, open_store
from workbench.units import MIB, PAGE_BYTES

MLX_CACHE_BYTES = 64 * MIB
"""Freed buffers that MLX may keep; without a limit they would grow beside the budget."""
_DEFAULT_SHARE = 0.5


class RuntimeConfig(Config):
    """How experts and n-gram rows come from disk."""

    cache_bytes: int | None = None
    """Bytes of record slots plus n-gram pages; absent: half of the memory that is available, or everything if that is less."""
    policy: str = "lfru"
    """Eviction policy of both pools."""
    uncached: bool = True
    """Read past the page cache (O_DIRECT, F_NOCACHE), so that a cached byte is one of our slots."""
    checksums: bool = True
    """Check every component and page as it arrives."""
    expert_depth: int = Field(16, ge=1, le=512)
    """Expert reads at the disk at once."""
    ple_depth: int = Field(64, ge=1, le=512)
    """The same of n-gram pages, in lanes of their own."""
    wave: Literal["barrier", 1, 2, 4, "all"] = 4
    """Missing experts of a layer that are computed together as they arrive; barrier: nothing starts before all are there."""
    split_components: bool = False
    """Read gate+up and down of a record apart, so that gate and up can run while down is on its way."""
    ple: Literal["early", "late"] = "early"
    """When n-gram pages are asked for: as soon as the tokens are known, or where the layer needs them (the control)."""
    queue: Literal["lanes", "fifo"] = "lanes"
    """Lanes of their own for n-gram pages, or one common queue and depth for pages and records (the control)."""
    readback: Literal["ids", "misses"] = "ids"
    """What the host reads of a route before the experts run: every id, or the missing ones only."""
    prefetch: Literal["nothing", "next_layer"] = "nothing"
    """Predicted reads; next_layer: the whole next layer, within the budgets (the control)."""
    envelope: str = ""
    """A disk of `data/envelopes` (its name, or a path) that the reads are slowed to: the run is emulated. Empty: this disk."""
    prefill: Literal["auto", "macro", "micro"] = "auto"
    """How a tile of the prompt gets its experts: whole layers in sequence, the union of what it needs, or the faster one."""
    ring_share: float = Field(0.25, gt=0, le=1)
    """Part of the slots that whole layers may borrow while they pass through."""


class ResidentEngine:
    """Everything in memory, from a checkpoint folder; no store is opened."""

    def __init__(self, checkpoint: Path, log: EventLog) -> None:
        mx.set_cache_limit(MLX_CACHE_BYTES)
        self.log = log
        self.step = Step()
        before = mx.get_active_memory()
        self.model, self.experts, self.rows = load_resident(checkpoint)
        self.resident_bytes = mx.get_active_memory() - before
        """Weights as they are held in memory."""
        self._sha256 = _digest(checkpoint)

    @property
    def cache_bytes(self) -> int:
        """There is no cache."""
        return 0

    @property
    def identity(self) -> dict[str, str]:
        """Digest of the checkpoint's tensors."""
        return {"checkpoint_sha256": self._sha256}

    def settle(self) -> None:
        """Nothing is leased."""

    def abandon(self, request: int) -> None:
        """Nothing is leased."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        return None


class StreamedEngine:
    """Trunk in memory, experts and rows from a store within one byte budget. Close it (or use `with`) to end its reads."""

    def __init__(
        self, folder: Path, config: RuntimeConfig, log: EventLog, *, reader: Reader | None = None, clock: Clock | None = None
    ) -> None:
        """`reader` and its `clock` stand in for this machine's, to emulate a disk or plant faults.

        Raises BadInput on a damaged store or a budget below one token's working set.
        """
        mx.set_cache_limit(MLX_CACHE_BYTES)
        self.store: Store = open_store(folder)
        self.config = config
        self.log = log
        self.step = Step()
        self._least, self.budget = _plan(self.store, config)
        geometry = self.store.geometry
        # before the pools, whose memory must not add to what loading holds for a moment
        before = mx.get_active_memory()
        self.model = Model(geometry, load_tensors(self.store.resident_path))
        self.resident_bytes = mx.get_active_memory() - before
        """Trunk weights as they are held in memory."""
        self._record_pool = RecordPool(geometry, self.budget.num_slots, lead_in_granule(self.store))
        self._page_pool = PagePool(self.budget.num_pages, self.budget.page_bytes)
        depth = {"expert": config.expert_depth, "ple": config.ple_depth}
        self.reader = open_reader(uncached=config.uncached, depth=depth) if reader is None else reader
        try:
            self._connect(geometry, clock or RealClock())
        except BaseException:
            self.reader.close()
            raise

    def _connect(self, geometry: Geometry, clock: Clock) -> None:
        store, config = self.store, self.config
        records = RecordSource(
            store.experts, self._record_pool, self.reader.open_file(store.experts.path), checksums=config.checksums
        )
        files = {layer: self.reader.open_file(ngrams.path) for layer, ngrams in store.ngrams.items()}
        pages = PageSource(store.ngrams, files, self._page_pool, checksums=config.checksums)
        slots = SlotTable(self.budget.num_slots, self._policy(self.budget.num_slots), min_slots=self._least.num_slots)
        page_slots = SlotTable(self.budget.num_pages, self._policy(self.budget.num_pages), min_slots=self._least.num_pages)
        pools = [
            Pool(name="expert", digest=store.experts.digest, slots=slots, sizes=records.sizes, parts=(RECORD_BITS,)),
            Pool(
                name="ple",
                digest="+".join(ngrams.digest for ngrams in store.ngrams.values()),
                slots=page_slots,
                sizes=pages.sizes,
                parts=(PAGE_BIT,),
            ),
        ]
        lanes = LaneConfig(depth={"expert": self.budget.num_slots, "ple": max(1, self.budget.num_pages)})
        self.scheduler = Scheduler(pools, SchedulerConfig(lanes=lanes))
        self.transfer = Transfer(self.scheduler, self.reader, {"expert": records, "ple": pages}, self.log, clock)
        self.experts = StreamedExperts(geometry, self.transfer, records, self._record_pool, self.step)
        self.rows = StreamedRows(store.ngrams, self.transfer, pages, self._page_pool, self.step)

    def _policy(self, capacity: int) -> policies.Policy:
        if self.config.policy == "belady":
            raise BadInput("policy belady needs the future: it exists in replays only")
        return policies.make(self.config.policy, capacity=capacity)

    @property
    def cache_bytes(self) -> int:
        """Bytes of slots and pages."""
        return self.budget.num_bytes

    @property
    def identity(self) -> dict[str, str]:
        """Digest of the store, the cache that was made of the budget, and the reader that this machine got."""
        slots, pages = f"{self.budget.num_slots}", f"{self.budget.num_pages}"
        reader = type(self.reader).__name__
        return {"store_digest": self.store.digest, "cache_slots": slots, "cache_pages": pages, "reader": reader}

    def settle(self) -> None:
        """A pass was evaluated: its last layer's slots may go."""
        self.experts.settle()

    def abandon(self, request: int) -> None:
        """A pass failed: its reads are given up, its leases end."""
        self.experts.forget()
        self.rows.forget()
        self.scheduler.cancel(request)

    def close(self) -> None:
        """Ends all reads, threads and files, then accounts for what nobody used."""
        self.experts.settle()
        self.reader.close()
        self.scheduler.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _digest(checkpoint: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(checkpoint.glob("*.safetensors")):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def lead_in_granule(store: Store) -> int:
    """A divisor of every record's lead-in: layers start on pages of the store, records follow back to back."""
    first = store.experts.record(store.experts.layers[0].layer, 0)
    return math.gcd(first.offset, first.num_bytes, PAGE_BYTES)


def cache_limits(store: Store) -> tuple[CacheBudget, CacheBudget]:
    """The smallest cache that a store admits, and the one that holds all of it."""
    geometry = store.geometry
    page_bytes = max((ngrams.page_bytes for ngrams in store.ngrams.values()), default=0)
    stride_bytes = slot_stride_bytes(geometry, lead_in_granule(store))
    least = CacheBudget(
        num_slots=geometry.num_experts_per_tok * geometry.num_hidden_layers,
        stride_bytes=stride_bytes,
        num_pages=geometry.ple_heads * len(store.ngrams),
        page_bytes=page_bytes,
    )
    most = CacheBudget(
        num_slots=geometry.num_experts * geometry.num_hidden_layers,
        stride_bytes=stride_bytes,
        num_pages=sum(ngrams.num_pages for ngrams in store.ngrams.values()),
        page_bytes=page_bytes,
    )
    return least, most


def _plan(store: Store, config: RuntimeConfig) -> tuple[CacheBudget, CacheBudget]:
    least, most = cache_limits(store)
    cache_bytes = config.cache_bytes
    if cache_bytes is None:
        cache_bytes = min(most.num_bytes, int(psutil.virtual_memory().available * _DEFAULT_SHARE))
    return least, plan_cache(least, most, cache_bytes)
