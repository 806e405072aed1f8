"""The twin: the runtime's scheduler, slots and policies on a virtual clock, fed with routes, stage times and an envelope.

It gets nothing of a live run but these, and leaves the same events. All that it leaves is simulated.
"""

from collections.abc import Sequence

from pydantic import Field

from workbench.config import Config
from workbench.errors import BadInput
from workbench.policies import make
from workbench.policies.hot_set import HotSet
from workbench.readers.clock import VirtualClock
from workbench.readers.disk import Disk
from workbench.scheduling.demand import Demand, WaveSize
from workbench.scheduling.lanes import LaneConfig, SchedulerConfig
from workbench.scheduling.pool import RECORD_BITS, Pool
from workbench.scheduling.scheduler import Scheduler
from workbench.scheduling.slots import SlotTable
from workbench.scheduling.ticket import Event, Priority
from workbench.schema import EventLog
from workbench.schema.envelopes import Envelope
from workbench.simulate.pages import PageStage, drawn_pages
from workbench.simulate.passes import Pass
from workbench.simulate.prefetchers import PrefetchConfig, Prefetcher, make_prefetcher
from workbench.simulate.stages import StageTimes
from workbench.simulate.wire import Wire
from workbench.units import NS_PER_MS, NS_PER_US, PAGE_BYTES, align_down, align_up


class TwinConfig(Config):
    """What the twin imitates."""

    num_slots: int = Field(ge=1)
    """Record slots of the cache."""
    policy: str = "lfru"
    """Eviction policy of records and pages."""
    record_bytes: int = Field(2_764_800, ge=1)
    """Bytes of one record."""
    num_experts: int = Field(512, ge=1)
    """Experts of a layer."""
    wave: WaveSize = 1
    """As of the runtime. The shared expert runs while records come."""
    prefetch: PrefetchConfig = PrefetchConfig()
    """Predictions."""
    depth: int = Field(32, ge=1)
    """Most record reads in flight."""
    idle_ms: float = Field(0.0, ge=0)
    """Time between two turns, milliseconds: a tool runs, a person reads."""
    hot_set: int = Field(0, ge=0)
    """Most records that are warmed (P3) in that time for the sequence that goes on, hottest of its own first."""
    ple_slots: int = Field(4096, ge=1)
    """Slots for n-gram pages."""
    ple_pages: int = Field(0, ge=0)
    """N-gram pages that a token needs, where the passes do not say which: they are made up."""
    ple_layer: int = Field(1, ge=0)
    """Layer index that waits for made-up pages."""
    ple_reuse: float = Field(0.0, ge=0, le=1)
    """Chance that a made-up page is one that an earlier token needed; else it is a new one."""
    seed: int = 0
    """Of made-up pages and of an oracle's errors."""


class Twin:
    """One session on one machine that does not exist."""

    def __init__(self, config: TwinConfig, stages: StageTimes, envelope: Envelope, log: EventLog | None = None) -> None:
        """Events go to `log`, a new one where none is given. Raises BadInput when the policy can't run live."""
        if config.policy == "belady":
            raise BadInput("policy belady needs the future, which a scheduler has not; `workbench simulate misses` replays it")
        self.config = config
        self.log = EventLog() if log is None else log
        self._stages = stages
        lanes = LaneConfig(depth={"expert": config.depth, "ple": config.ple_slots})
        scheduler = Scheduler([_record_pool(config), _page_pool(config)], SchedulerConfig(lanes=lanes))
        costs = {f"{name}_ns": round(getattr(stages, f"{name}_us") * NS_PER_US) for name in ("ask", "behind", "take")}
        self._wire = Wire(scheduler, Disk(envelope), VirtualClock(), self.log, **costs)
        self._pages = PageStage(self._wire, config.ple_slots)
        self._held: Demand | None = None
        self._prefetcher: Prefetcher
        self._index = 0
        self._hot_sets: dict[int, HotSet] = {}

    def run(self, passes: Sequence[Pass]) -> EventLog:
        """Runs the passes and returns their events. Call it once. A change of request, or back, is a new turn.

        Raises BadInput when the routes have another number of layers than the stage times.
        """
        config, num_layers = self.config, self._stages.num_layers
        if passes and len(passes[0].keys) != num_layers:
            raise BadInput(f"the routes have {len(passes[0].keys)} layers, the stage times {num_layers}")
        if config.ple_pages:
            passes = drawn_pages(
                passes, layer=config.ple_layer, per_token=config.ple_pages, reuse=config.ple_reuse, seed=config.seed
            )
        keys = [layer_keys for each in passes for layer_keys in each.keys]
        self._prefetcher = make_prefetcher(
            config.prefetch, keys, num_layers=num_layers, num_experts=config.num_experts, seed=config.seed
        )
        request = None
        for each in passes:
            if each.request != request:
                if request is not None:
                    self._stand_idle(each.request)
                request = each.request
                self.log.add(self._wire.clock.now_ns(), "mark", name="request_start", request=request)
            self._run_pass(each)
        self._wire.drain()
        self._wire.scheduler.close()
        return self.log

    def _stand_idle(self, following: int) -> None:
        """The time between two turns, used for the sequence that goes on."""
        scheduler, now_ns = self._wire.scheduler, self._wire.clock.now_ns()
        if self.config.hot_set and following in self._hot_sets:
            resident = scheduler.pools["expert"].slots.resident_keys
            keys = self._hot_sets[following].missing(resident, self.config.hot_set)
            self._wire.prefetch(keys, Event(request=following), Priority.P3)
        self._wire.idle_until(now_ns + round(self.config.idle_ms * NS_PER_MS))

    def _run_pass(self, each: Pass) -> None:
        start_ns = self._wire.clock.now_ns()
        self._pages.start(each)
        for layer, keys in enumerate(each.keys):
            self._pages.wait(each, layer)
            self._run_layer(each, layer, keys)
        self._compute(self._stages.head_us)
        self._settle()
        now_ns = self._wire.clock.now_ns()
        columns = {"request": each.request, "phase": each.phase, "position": each.position + each.num_tokens - 1}
        self.log.add(now_ns, "token", duration_ns=now_ns - start_ns, value=float(each.num_tokens), **columns)

    def _run_layer(self, each: Pass, layer: int, keys: Sequence[int]) -> None:
        self._compute(self._stages.pre_router_us[layer])
        self._settle()
        if self.config.hot_set:
            self._hot_sets.setdefault(each.request, HotSet()).use(keys)
        for start in range(0, len(keys), self.config.num_slots):
            part = keys[start : start + self.config.num_slots]
            self._settle()
            demand = self._held = self._wire.demand(
                "expert",
                part,
                Event(request=each.request, phase=each.phase, layer=layer),
                position=each.position,
                logical_bytes=len(part) * self.config.record_bytes,
            )
            if start == 0:
                self._predict(each, layer)
            self._run_experts(each, layer, demand, len(part) / len(keys))
        self._index += 1

    def _run_experts(self, each: Pass, layer: int, demand: Demand, share: float) -> None:
        self._compute(share * self._stages.shared_us[layer])
        experts_us = share * self._stages.experts_us[layer]
        if self.config.wave == "barrier":
            self._wire.wait(demand, position=each.position)
            self._compute(experts_us)
            return
        one_us = experts_us / len(demand.slots)
        # a hit that a prediction brought is used now
        self._wire.wait(demand, position=each.position, keys=demand.hits)
        self._compute(one_us * len(demand.hits))
        missing = [*demand.joined, *demand.misses]
        size = len(missing) if self.config.wave == "all" else self.config.wave
        while missing:
            ready = self._wire.wait_for_some(demand, missing, min(size, len(missing)), position=each.position)
            self._compute(one_us * len(ready) + self._stages.wave_us)
            missing = [key for key in missing if key not in ready]

    def _predict(self, each: Pass, layer: int) -> None:
        ahead = self.config.prefetch.lead_layers
        keys = self._prefetcher.predict(self._index + ahead)
        if keys and each.phase == "decode":
            event = Event(
                request=each.request,
                phase=each.phase,
                layer=(layer + ahead) % self._stages.num_layers,
                deadline_ns=self._wire.clock.now_ns() + self._compute_until_router(layer, ahead),
            )
            self._wire.prefetch(keys, event, Priority.P1 if ahead == 1 else Priority.P2)

    def _compute_until_router(self, layer: int, ahead: int) -> int:
        """Nanoseconds of compute from this layer's router to that of the layer `ahead`, reads aside."""
        stages, total_us = self._stages, 0.0
        for step in range(ahead):
            here, there = (layer + step) % stages.num_layers, (layer + step + 1) % stages.num_layers
            total_us += stages.shared_us[here] + stages.experts_us[here] + stages.pre_router_us[there]
            total_us += stages.head_us if there == 0 else 0.0
        return round(total_us * NS_PER_US)

    def _settle(self) -> None:
        """What the layer before used was evaluated: its slots may go."""
        if self._held is not None:
            self._wire.scheduler.release(self._held)
            self._held = None

    def _compute(self, us: float) -> None:
        clock = self._wire.clock
        clock.sleep_until(clock.now_ns() + round(us * NS_PER_US))


def _record_pool(config: TwinConfig) -> Pool:
    record_bytes = config.record_bytes

    def sizes(key: int, bits: int) -> tuple[int, int]:
        # a layer starts on a page, its records lie back to back, and whole pages are moved
        start = key % config.num_experts * record_bytes
        return record_bytes, align_up(start + record_bytes, PAGE_BYTES) - align_down(start, PAGE_BYTES)

    slots = SlotTable(config.num_slots, make(config.policy, capacity=config.num_slots))
    return Pool(name="expert", digest="", slots=slots, sizes=sizes, parts=(RECORD_BITS,))


def _page_pool(config: TwinConfig) -> Pool:
    slots = SlotTable(config.ple_slots, make(config.policy, capacity=config.ple_slots))
    return Pool(name="ple", digest="", slots=slots, sizes=lambda key, bits: (PAGE_BYTES, PAGE_BYTES))
