"""Engines: a model with its experts and rows, resident from a checkpoint or streamed from a store."""

import hashlib
import math
from pathlib import Path
from types import TracebackType
from typing import Self

import mlx.core as mx
import psutil

from workbench import policies
from workbench.errors import BadInput
from workbench.geometry import Geometry
from workbench.model.model import Model
from workbench.readers import Clock, Disk, PacedReader, Reader, RealClock, open_reader
from workbench.runtime.budget import CacheBudget, plan_cache
from workbench.runtime.config import RuntimeConfig
from workbench.runtime.evaluation import Evaluation
from workbench.runtime.expert_math import ExpertMath, StackedMath, expert_math
from workbench.runtime.experts import StreamedExperts
from workbench.runtime.hit_table import HitTable
from workbench.runtime.pool import PagePool, RecordPool, slot_stride_bytes
from workbench.runtime.prefetch import NextLayer
from workbench.runtime.records import RecordSource
from workbench.runtime.resident import load_resident, load_tensors
from workbench.runtime.rows import PageSource, StreamedRows
from workbench.runtime.step import Step
from workbench.runtime.transfer import Transfer
from workbench.runtime.waves import Waves
from workbench.scheduling.lanes import LaneConfig, SchedulerConfig
from workbench.scheduling.pool import DOWN_BIT, GATE_UP_BITS, PAGE_BIT, RECORD_BITS, Pool
from workbench.scheduling.scheduler import Scheduler
from workbench.scheduling.slots import SlotTable
from workbench.schema import EventLog
from workbench.schema.envelopes import load_envelope
from workbench.stores import Store, open_store
from workbench.units import MIB, PAGE_BYTES

MLX_CACHE_BYTES = 64 * MIB
"""Freed buffers that MLX may keep; without a limit they would grow beside the budget."""
_DEFAULT_SHARE = 0.5


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
        self.reader = configured_reader(config) if reader is None else reader
        try:
            self._connect(geometry, clock or RealClock())
        except BaseException:
            self.reader.close()
            raise

    def _connect(self, geometry: Geometry, clock: Clock) -> None:
        config, evaluation = self.config, Evaluation(self.log, self.step)
        records, pages = self._sources()
        pools = self._pools(records, pages)
        lanes = LaneConfig(depth={"expert": self.budget.num_slots, "ple": max(1, self.budget.num_pages)})
        self.scheduler = Scheduler(pools, SchedulerConfig(lanes=lanes))
        sources = {"expert": records, "ple": pages}
        self.transfer = Transfer(self.scheduler, self.reader, sources, self.log, clock, evaluation.finish_all)
        math = expert_math(self._record_pool, records.lead_in)
        self.experts = StreamedExperts(
            geometry,
            self.transfer,
            Waves(math, self.transfer, evaluation, self.step, config.wave),
            evaluation,
            self.step,
            hit_table=self._hit_table(geometry, math) if config.readback == "misses" else None,
            next_layer=NextLayer(geometry, self.transfer, self.step) if config.prefetch == "next_layer" else None,
        )
        early = config.ple == "early"
        self.rows = StreamedRows(self.store.ngrams, self.transfer, pages, self._page_pool, self.step, early=early)

    def _sources(self) -> tuple[RecordSource, PageSource]:
        store, config = self.store, self.config
        expert_file = self.reader.open_file(store.experts.path)
        files = {layer: self.reader.open_file(ngrams.path) for layer, ngrams in store.ngrams.items()}
        records = RecordSource(store.experts, self._record_pool, expert_file, checksums=config.checksums)
        lane = "ple" if config.queue == "lanes" else "expert"
        return records, PageSource(store.ngrams, files, self._page_pool, lane=lane, checksums=config.checksums)

    def _pools(self, records: RecordSource, pages: PageSource) -> tuple[Pool, Pool]:
        store, budget = self.store, self.budget
        expert = Pool(
            name="expert",
            digest=store.experts.digest,
            slots=SlotTable(budget.num_slots, self._policy(budget.num_slots), min_slots=self._least.num_slots),
            sizes=records.sizes,
            parts=(GATE_UP_BITS, DOWN_BIT) if self.config.split_components else (RECORD_BITS,),
        )
        ple = Pool(
            name="ple",
            digest="+".join(ngrams.digest for ngrams in store.ngrams.values()),
            slots=SlotTable(budget.num_pages, self._policy(budget.num_pages), min_slots=self._least.num_pages),
            sizes=pages.sizes,
            parts=(PAGE_BIT,),
        )
        return expert, ple

    def _hit_table(self, geometry: Geometry, math: ExpertMath) -> HitTable:
        """Kept up to date by the pool. Raises BadInput where it can't serve."""
        if not isinstance(math, StackedMath):
            raise BadInput(
                f"readback=misses runs all hits in one gather, which records of {geometry.record_bytes:,} bytes have none of "
                "(their scales are not kept in float32); use readback=ids"
            )
        if self.config.wave == "barrier":
            raise BadInput("readback=misses starts hits at once and wave=barrier starts nothing before all is there: choose one")
        table = HitTable(geometry.num_experts * geometry.num_expert_layers, math)
        self.scheduler.pools["expert"].on_gone = table.drop
        return table

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


def configured_reader(config: RuntimeConfig) -> Reader:
    """This machine's reader with the lanes of a configuration, slowed to its envelope where it names one.

    Raises BadInput when there is no such envelope.
    """
    envelope = load_envelope(config.envelope) if config.envelope else None
    depth = {"expert": config.expert_depth} | ({"ple": config.ple_depth} if config.queue == "lanes" else {})
    reader = open_reader(uncached=config.uncached, depth=depth)
    return reader if envelope is None else PacedReader(reader, Disk(envelope), depth)


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
