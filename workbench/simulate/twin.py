"""The twin: the runtime's scheduler, slots and policies on a virtual clock, fed with routes, stage times and an envelope.

The twin uses nothing of a live run but these inputs, and logs the same events. All of its results are simulated.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from workbench.config import Config, Seed
from workbench.errors import BadInput
from workbench.loading.pages import PageBatch, PageLoad
from workbench.loading.predicting import Predicting
from workbench.loading.transfer import Transfer
from workbench.loading.wait import Loading
from workbench.loading.warming import Warming, idle_until
from workbench.loading.waves import run_in_waves
from workbench.policies import PolicyName
from workbench.prediction import ClassBudgets, PassFuture, PredictorName, PredictorSettings, RouteShape, make_predictor
from workbench.readers.clock import VirtualClock
from workbench.readers.disk import Disk
from workbench.readers.timed import TimedReader
from workbench.scheduling.limits import ReadLimits, SchedulerConfig
from workbench.scheduling.scheduler import Scheduler
from workbench.scheduling.ticket import Demand, Scope, WaveSize
from workbench.schema import EventLog
from workbench.schema.envelopes import Envelope
from workbench.simulate.pages import drawn_pages
from workbench.simulate.passes import Pass
from workbench.simulate.stages import StageTimes
from workbench.simulate.twin_sources import TimedSource, page_pool, record_pool
from workbench.units import NS_PER_MS, NS_PER_US, PAGE_BYTES

Slots = Annotated[int, Field(ge=1, le=1 << 24)]
"""Slots of a simulated cache: the most are far above any machine's, and their tables fit in memory."""


class TwinConfig(Config):
    """Settings of the simulated runtime."""

    num_slots: Slots
    """Record slots of the cache."""
    policy: PolicyName = "lfru"
    """Eviction policy of records and pages."""
    record_bytes: int = Field(2_764_800, ge=1)
    """Bytes of one record."""
    num_experts: int = Field(512, ge=1)
    """Experts of a layer."""
    wave: WaveSize = 1
    """As `runtime.wave`. The shared expert always runs while records are read."""
    predictor: PredictorName = "nothing"
    """As `runtime.predictor`: nothing, previous_token, next_layer, oracle, noisy_oracle, or `file.py:Class`."""
    predictor_settings: PredictorSettings = PredictorSettings()
    """Settings of the predictor."""
    budgets: ClassBudgets = ClassBudgets()
    """Limits of predicted reads: bytes, slots and reads in flight."""
    depth: int = Field(32, ge=1)
    """Most record reads in flight."""
    idle_ms: float = Field(0.0, ge=0, le=1e9)
    """Idle time between two turns (a tool runs, a person reads), milliseconds."""
    hot_set: int = Field(0, ge=0)
    """Most records that are prefetched (P3) in the idle time for the sequence that continues, its hottest first."""
    ple_slots: Slots = 4096
    """Slots for n-gram pages."""
    ple_pages: int = Field(0, ge=0)
    """Synthetic n-gram pages per token, which replace the pages of the passes; 0: the passes keep their own pages."""
    ple_layer: int = Field(1, ge=0)
    """Index of the layer that needs the synthetic pages."""
    ple_reuse: float = Field(0.0, ge=0, le=1)
    """Probability that a synthetic page is one that an earlier token needed; otherwise it is a new page."""
    seed: Seed = 0
    """Seed of the synthetic pages."""

    @property
    def predictor_label(self) -> str:
        """The predictor in a word or two, for tables."""
        return self.predictor_settings.label(self.predictor)


class Twin:
    """One session on one simulated machine."""

    def __init__(self, config: TwinConfig, stages: StageTimes, envelope: Envelope, log: EventLog | None = None) -> None:
        """Logs events to `log`, by default a new one. Raises BadInput when the policy can't run live."""
        if config.policy == "belady":
            raise BadInput(
                "policy belady needs the future, which a scheduler doesn't know; `workbench simulate misses` replays it"
            )
        self.config = config
        self.log = EventLog() if log is None else log
        self._stages = stages
        self._clock = VirtualClock()
        self._transfer = _transfer(config, stages, Disk(envelope), self.log, self._clock)
        self._held: Demand | None = None
        self._predicting: Predicting | None = None
        self._warmings: dict[int, Warming] = {}

    def run(self, passes: Sequence[Pass]) -> EventLog:
        """Runs the passes and returns the event log; to be called once per twin.

        A pass of another request than the previous pass starts a new turn, after the idle time. Raises BadInput when the passes
        have another number of layers than the stage times.
        """
        config, num_layers = self.config, self._stages.num_layers
        if passes and len(passes[0].keys) != num_layers:
            raise BadInput(f"the routes have {len(passes[0].keys)} layers, the stage times {num_layers}")
        if config.ple_pages:
            passes = drawn_pages(
                passes, layer=config.ple_layer, per_token=config.ple_pages, reuse=config.ple_reuse, seed=config.seed
            )
        self._predicting = self._predicting_of(passes)
        request = None
        for each in passes:
            if each.request != request:
                if request is not None:
                    self._stand_idle(each.request)
                request = each.request
                self.log.add(self._clock.now_ns(), "mark", name="request_start", request=request)
            self._transfer.run(self._pass(each))
        while self._transfer.num_in_flight:
            self._transfer.stand_by()
        self._transfer.scheduler.close()
        return self.log

    def _predicting_of(self, passes: Sequence[Pass]) -> Predicting | None:
        """Drives the configured predictor, to which the future of `passes` is available; None without a predictor."""
        config = self.config
        if config.predictor == "nothing":
            return None
        top_k = max((len(keys) for each in passes for keys in each.keys), default=1)
        shape = RouteShape(num_layers=self._stages.num_layers, num_experts=config.num_experts, top_k=top_k)
        future = PassFuture([(each.request, each.position, each.keys) for each in passes])
        predictor = make_predictor(config.predictor, shape, config.predictor_settings, future)
        return Predicting(self._transfer, predictor, shape, self._until_router)

    def _stand_idle(self, following: int) -> None:
        """Advances the clock by the idle time between two turns and prefetches the hot set of request `following` meanwhile."""
        idle_ns = round(self.config.idle_ms * NS_PER_MS)
        if following in self._warmings:
            self._warmings[following].stand_idle(following, idle_ns)
        else:
            idle_until(self._transfer, self._clock.now_ns() + idle_ns)

    def _pass(self, each: Pass) -> Loading[None]:
        start_ns = self._clock.now_ns()
        scope = Scope(each.request, each.phase, each.position, each.num_tokens)
        loads = {layer: self._load_pages(scope, each, layer) for layer in each.pages}
        for layer, keys in enumerate(each.keys):
            if layer in loads:
                yield from loads[layer].run(_decoded)
            yield from self._layer(scope, layer, keys)
        self._compute(self._stages.head_us)
        self._release()
        self._commit(scope, each)
        now_ns = self._clock.now_ns()
        row = {"t_ns": now_ns, "kind": "token", "request": each.request, "phase": each.phase}
        row["position"], row["duration_ns"] = each.position + each.num_tokens - 1, now_ns - start_ns
        row["value"], row["committed_tokens"] = float(each.num_tokens), each.num_tokens
        self.log.append(row)

    def _commit(self, scope: Scope, each: Pass) -> None:
        """Tells the predictor which records the committed pass used."""
        if self._predicting is not None:
            self._predicting.committed(scope, [[keys] for keys in each.keys])

    def _load_pages(self, scope: Scope, each: Pass, layer: int) -> PageLoad:
        """Submits the first batch of a PLE layer's pages and returns the load of all; PLE layers share the slots equally."""
        keys, room = each.pages[layer], self.config.ple_slots // len(each.pages)
        parts = [keys[start : start + room] for start in range(0, len(keys), room)]
        loads = [PageBatch(part, len(part) * PAGE_BYTES) for part in parts]
        return PageLoad(self._transfer, scope.origin(layer), loads, early=True)

    def _layer(self, scope: Scope, layer: int, keys: Sequence[int]) -> Loading[None]:
        self._compute(self._stages.pre_router_us[layer])
        self._release()
        if self.config.hot_set:
            self._warming(scope.request).use(keys)
        for start in range(0, len(keys), self.config.num_slots):
            part = keys[start : start + self.config.num_slots]
            self._release()
            num_bytes = len(part) * self.config.record_bytes
            demand = yield from self._transfer.load("expert", part, scope.origin(layer), logical_bytes=num_bytes)
            self._held = demand
            if self._predicting is not None and not start:
                self._predicting.routed(scope, layer, np.array([keys]) - layer * self.config.num_experts)
            share = len(part) / len(keys)
            self._compute(share * self._stages.shared_us[layer])
            work = _TimedExperts(self, demand, share * self._stages.experts_us[layer])
            yield from run_in_waves(self._transfer, demand, part, work, self.config.wave)

    def _warming(self, request: int) -> Warming:
        return self._warmings.setdefault(request, Warming(self._transfer, most=self.config.hot_set))

    def _until_router(self, layer: int, lead: int) -> int:
        """Nanoseconds of compute from this layer's router to the router `lead` layers ahead, without any waits for reads."""
        stages, total_us = self._stages, 0.0
        for step in range(lead):
            here, there = (layer + step) % stages.num_layers, (layer + step + 1) % stages.num_layers
            total_us += stages.shared_us[here] + stages.experts_us[here] + stages.pre_router_us[there]
            total_us += stages.head_us if there == 0 else 0.0
        return round(total_us * NS_PER_US)

    def _release(self) -> None:
        """Releases the demand of the previous layer, whose compute is done."""
        if self._held is not None:
            self._transfer.release(self._held)
            self._held = None

    def _compute(self, us: float) -> None:
        self._clock.sleep_until(self._clock.now_ns() + round(us * NS_PER_US))


class _TimedExperts:
    """The experts of one demand, which advance the clock and compute nothing."""

    def __init__(self, twin: Twin, demand: Demand, experts_us: float) -> None:
        """`experts_us`: compute time of all experts of the demand, microseconds."""
        self._twin, self._hits, self._all_us = twin, demand.hits, experts_us
        self._one_us = experts_us / len(demand.slots)

    def run(self, keys: Sequence[int], slots: Mapping[int, int]) -> None:
        """Advances the clock by the compute time of the experts `keys`; a wave of missing experts also costs `wave_us`."""
        if self._twin.config.wave == "barrier":
            self._twin._compute(self._all_us)
        elif keys[0] in self._hits:
            self._twin._compute(self._one_us * len(keys))
        else:
            self._twin._compute(self._one_us * len(keys) + self._twin._stages.wave_us)

    def gate_up(self, keys: Sequence[int], slots: Mapping[int, int]) -> Any:
        """Never called: records are read whole."""
        raise AssertionError("the twin reads whole records")

    def down(self, keys: Sequence[int], slots: Mapping[int, int], inner: Any) -> None:
        """Never called: records are read whole."""
        raise AssertionError("the twin reads whole records")

    def sync_piece(self) -> bool:
        """False: no compute is in flight, since `run` returns when its experts are done."""
        return False


def _decoded(index: int, demand: Demand) -> None:
    """Called with each loaded batch of pages; takes no time, since the stage times include the rows."""


def _transfer(config: TwinConfig, stages: StageTimes, disk: Disk, log: EventLog, clock: VirtualClock) -> Transfer:
    """The live runtime's I/O core over a timed reader."""
    records = record_pool(
        num_slots=config.num_slots, policy=config.policy, record_bytes=config.record_bytes, num_experts=config.num_experts
    )
    pages = page_pool(num_slots=config.ple_slots, policy=config.policy)
    limits = ReadLimits(depth={"expert": config.depth, "ple": config.ple_slots}, budgets=config.budgets.by_class)
    ask_ns, behind_ns, take_ns = (round(us * NS_PER_US) for us in (stages.ask_us, stages.behind_us, stages.take_us))
    source = TimedSource(clock=clock, ask_ns=ask_ns, take_ns=take_ns)
    reader = TimedReader(None, disk, clock, behind_ns=behind_ns)
    scheduler = Scheduler([records, pages], SchedulerConfig(limits=limits))
    sources = {"expert": source, "ple": source}
    return Transfer(scheduler, reader, sources, log, clock, lambda origin: None, notes_waves=False)
