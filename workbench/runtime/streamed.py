"""The streaming engine: a model whose experts and rows are read from a store, within one byte budget."""

from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx

from workbench import policies
from workbench.address_space import check_address_space
from workbench.errors import BadInput
from workbench.geometry import Geometry
from workbench.loading.chunks import ChunkSource, cut_layers
from workbench.loading.pages import LAYER_SHIFT, PageSource
from workbench.loading.predicting import Predicting
from workbench.loading.records import RecordSource
from workbench.loading.transfer import ReadSource, Transfer
from workbench.model.model import Model
from workbench.prediction import RouteShape, make_predictor
from workbench.readers import Clock, Disk, PacedReader, Reader, RealClock, open_reader
from workbench.runtime.chunk_buffer import LAYER, ChunkBuffer, layer_pool
from workbench.runtime.config import RuntimeConfig
from workbench.runtime.crossover import UNKNOWN_DISK, Crossover, DiskRates
from workbench.runtime.engine import Engine
from workbench.runtime.evaluation import Evaluation
from workbench.runtime.expert_math import ExpertMath, StackedMath, expert_math
from workbench.runtime.experts import StreamedExperts
from workbench.runtime.hit_table import HitTable
from workbench.runtime.memory import PageMemory, RecordMemory
from workbench.runtime.prefill import Prefill
from workbench.runtime.resident import LOADED_PER_STORED, MLX_CACHE_BYTES, load_tensors
from workbench.runtime.rows import StreamedRows
from workbench.runtime.store_cache import lead_in_granule, plan_store_cache
from workbench.runtime.union import PrefillShare
from workbench.scheduling.limits import ReadLimits, SchedulerConfig
from workbench.scheduling.pool import DOWN_BIT, GATE_UP_BITS, PAGE_BIT, RECORD_BITS, Pool
from workbench.scheduling.scheduler import Scheduler
from workbench.scheduling.slots import SlotTable
from workbench.schema import EventLog
from workbench.schema.envelopes import load_envelope
from workbench.stores import Store, open_to_run
from workbench.stores.verified import check_resident
from workbench.units import MIB, PAGE_BYTES, format_bytes

COALESCE_BYTES = 4 * MIB
"""Largest read merged from adjacent reads: a longer one would only delay the first of them."""


class StreamedEngine(Engine):
    """Trunk in memory, experts and rows from a store within one byte budget. Close it (or use `with`) to end its reads."""

    experts: StreamedExperts

    def __init__(
        self,
        folder: Path,
        config: RuntimeConfig,
        log: EventLog,
        *,
        rates: DiskRates = UNKNOWN_DISK,
        reader: Reader | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`rates`: of the disk, for the choice of prefill modes. `reader` and its `clock` stand in for this machine's,
        to emulate a disk or plant faults.

        Raises BadInput on a damaged store or a budget below one token's working set.
        """
        mx.set_cache_limit(MLX_CACHE_BYTES)
        self.store: Store = open_to_run(folder)
        self.config = config
        self._rates = rates
        self._least, self.budget = plan_store_cache(self.store, config.cache_bytes)
        geometry = self.store.geometry
        self.resident_check_ms = check_resident(self.store)
        """Time that the digest of the resident weights took; 0: the file is unchanged since the last comparison."""
        check_address_space(LOADED_PER_STORED * self.store.resident_path.stat().st_size + self.budget.num_bytes)
        # before the pools, whose memory must not add to what loading holds for a moment
        before = mx.get_active_memory()
        model = Model(geometry, load_tensors(self.store.resident_path))
        self.resident_bytes = mx.get_active_memory() - before
        self._record_memory = RecordMemory(geometry, self.budget.num_slots, lead_in_granule(self.store))
        self._page_memory = PageMemory(self.budget.num_pages, self.budget.page_bytes)
        self.cache_bytes = self.budget.num_bytes
        self.reader = configured_reader(config) if reader is None else reader
        self.identity = {
            "store_digest": self.store.digest,
            "checkpoint_sha256": self.store.manifest.source.sha256,
            "cache_slots": f"{self.budget.num_slots}",
            "cache_pages": f"{self.budget.num_pages}",
            "reader": type(self.reader).__name__,
        }
        try:
            self._connect(model, Evaluation(log), log, clock or RealClock())
        except BaseException:
            self.reader.close()
            raise

    def _connect(self, model: Model, evaluation: Evaluation, log: EventLog, clock: Clock) -> None:
        """Ties stores, reader, scheduling and model together."""
        config, geometry = self.config, self.store.geometry
        expert_file = self.reader.open_file(self.store.experts.path)
        self._records, pages = self._sources(expert_file)
        chunks = self._chunks(expert_file)
        sources: dict[str, ReadSource] = {"expert": self._records, "ple": pages}
        if chunks is not None:
            sources[LAYER] = chunks
        self.scheduler = Scheduler(self._pools(self._records, pages, chunks), scheduler_config(config))
        transfer = Transfer(self.scheduler, self.reader, sources, log, clock, evaluation.finish_all)
        self._buffer = ChunkBuffer(transfer, chunks, self._record_memory, self._num_ring_slots) if chunks else None
        predicting = self._predicting_of(transfer)
        math = expert_math(self._record_memory, self._records.lead_in)
        experts = StreamedExperts(
            geometry,
            transfer,
            math,
            evaluation,
            config.wave,
            prefill=self.new_prefill(transfer, log, range(geometry.num_hidden_layers)),
            hit_table=self._hit_table(geometry, math, evaluation) if config.readback == "misses" else None,
            predicting=predicting,
        )
        rows = StreamedRows(self.store.ngrams, transfer, pages, self._page_memory, early=config.ple == "early")
        super().__init__(model, experts, rows, transfer, evaluation, log, predicting)

    def _predicting_of(self, transfer: Transfer) -> Predicting | None:
        """Runs the configured predictor; None: nothing is predicted."""
        if self.config.predictor == "nothing":
            return None
        geometry = self.store.geometry
        shape = RouteShape(
            num_layers=geometry.num_hidden_layers, num_experts=geometry.num_experts, top_k=geometry.num_experts_per_tok
        )
        return Predicting(transfer, make_predictor(self.config.predictor, shape, self.config.predictor_settings), shape)

    def new_prefill(self, transfer: Transfer, log: EventLog, layers: Sequence[int]) -> Prefill:
        """A prefill driver for `layers`, with cost estimates of its own."""
        geometry, config = self.store.geometry, self.config
        crossover = Crossover(
            self._rates,
            record_bytes=geometry.record_bytes,
            num_experts=geometry.num_experts,
            top_k=geometry.num_experts_per_tok,
            ring_bytes=self._buffer.num_bytes if self._buffer else 0,
            # only windows of whole pages lie side by side
            records_per_call=1 if geometry.record_bytes % PAGE_BYTES else max(1, COALESCE_BYTES // geometry.record_bytes),
        )
        return Prefill(
            transfer,
            self._records,
            self._record_memory,
            log,
            layers=layers,
            crossover=crossover,
            share=PrefillShare.of(self.budget.num_slots, config.ring_share, geometry.num_hidden_layers),
            buffer=self._buffer,
            mode=config.prefill,
        )

    @property
    def _num_ring_slots(self) -> int:
        """Slots that reads of whole layers borrow; one token's records always fit in the others."""
        num_slots = self.budget.num_slots
        return min(int(self.config.ring_share * num_slots), num_slots - self.store.geometry.num_experts_per_tok)

    def _chunks(self, file: int) -> ChunkSource | None:
        """Reads of whole layers; None where the ring would be too small. Raises BadInput when the configuration needs one."""
        memory, num_ring_slots = self._record_memory, self._num_ring_slots
        cut = cut_layers(self.store.experts, max(0, num_ring_slots * memory.stride_bytes - PAGE_BYTES))
        if cut.num_places:
            first = memory.num_slots - num_ring_slots
            return ChunkSource(self.store.experts, memory, first, cut, file, checksums=self.config.checksums)
        if self.config.prefill == "macro":
            need, have = format_bytes(2 * cut.place_bytes), format_bytes(num_ring_slots * memory.stride_bytes)
            raise BadInput(
                f"runtime.prefill=macro needs a ring of {need}, ring_share gives it {have}: raise cache_bytes or ring_share"
            )
        return None

    def _sources(self, expert_file: int) -> tuple[RecordSource, PageSource]:
        store, config = self.store, self.config
        files = {layer: self.reader.open_file(ngrams.path) for layer, ngrams in store.ngrams.items()}
        records = RecordSource(store.experts, self._record_memory, expert_file, checksums=config.checksums)
        return records, PageSource(store.ngrams, files, self._page_memory, queue=page_queue(config), checksums=config.checksums)

    def _pools(self, records: RecordSource, pages: PageSource, chunks: ChunkSource | None) -> list[Pool]:
        store, budget = self.store, self.budget
        expert = Pool(
            name="expert",
            digest=store.experts.digest,
            slots=SlotTable(
                budget.num_slots, self._policy(budget.num_slots, store.geometry.num_experts), min_slots=self._least.num_slots
            ),
            sizes=records.sizes,
            parts=(GATE_UP_BITS, DOWN_BIT) if self.config.split_components else (RECORD_BITS,),
        )
        ple = Pool(
            name="ple",
            digest="+".join(ngrams.digest for ngrams in store.ngrams.values()),
            slots=SlotTable(budget.num_pages, self._policy(budget.num_pages, 1 << LAYER_SHIFT), min_slots=self._least.num_pages),
            sizes=pages.sizes,
            parts=(PAGE_BIT,),
            queue=page_queue(self.config),
        )
        return [expert, ple, *([layer_pool(chunks, store.experts.digest)] if chunks else [])]

    def _hit_table(self, geometry: Geometry, math: ExpertMath, evaluation: Evaluation) -> HitTable:
        """Table of hits, kept up to date by the pool. Raises BadInput for a store or setting without such a table."""
        if not isinstance(math, StackedMath):
            raise BadInput(
                f"runtime.readback=misses runs all hits in one gather, of which records of {geometry.record_bytes:,} bytes "
                "have none (their scales are not kept in float32); use runtime.readback=ids"
            )
        if self.config.wave == "barrier":
            raise BadInput(
                "runtime.readback=misses starts hits at once, runtime.wave=barrier nothing before all is there: choose one"
            )
        table = HitTable(geometry.num_experts * geometry.num_expert_layers, math, evaluation)
        self.scheduler.pools["expert"].on_gone = table.drop
        return table

    def _policy(self, capacity: int, keys_per_layer: int) -> policies.Policy:
        if self.config.policy == "belady":
            raise BadInput("policy belady needs the future: it exists in replays only")
        return policies.make(self.config.policy, capacity=capacity, offered={"num_experts": keys_per_layer})

    def close(self) -> None:
        """Ends all passes, reads, threads and files, then accounts for unused bytes. May be called twice."""
        super().close()
        self.reader.close()
        self.scheduler.close()


def page_queue(config: RuntimeConfig) -> str:
    """Name of the queue of n-gram pages: a queue of their own, or the queue of records (the control)."""
    return "ple" if config.queue == "lanes" else "expert"


def disk_depth(config: RuntimeConfig) -> dict[str, int]:
    """Most reads in flight, by queue: the scheduler's limit and the reader's depth."""
    depth = {"expert": config.expert_depth, LAYER: config.layer_depth}
    return depth | ({"ple": config.ple_depth} if config.queue == "lanes" else {})


def scheduler_config(config: RuntimeConfig) -> SchedulerConfig:
    """Depth and budgets of a configuration. The reader has the same depth as the scheduler, so it never queues a read."""
    return SchedulerConfig(limits=ReadLimits(depth=disk_depth(config), budgets=config.budgets.by_class))


def configured_reader(config: RuntimeConfig) -> Reader:
    """This machine's reader with the queues of a configuration, slowed to the envelope that the configuration names.

    Raises BadInput when there is no such envelope.
    """
    envelope = load_envelope(config.envelope) if config.envelope else None
    reader = open_reader(uncached=config.uncached, depth=disk_depth(config), coalesce_bytes=COALESCE_BYTES)
    return reader if envelope is None else PacedReader(reader, Disk(envelope))
