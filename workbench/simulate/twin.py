"""The twin: the runtime's scheduler, slots and policies on a virtual clock, fed with routes, stage times and an envelope.

It gets nothing of a live run but these, and leaves the same events. All that it leaves is simulated.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from workbench.config import Config
from workbench.errors import BadInput
from workbench.policies import make
from workbench.policies.hot_set import HotSet
from workbench.readers.clock import VirtualClock
from workbench.readers.disk import Disk
from workbench.scheduling.demand import Demand
from workbench.scheduling.lanes import LaneConfig, SchedulerConfig
from workbench.scheduling.pool import RECORD_BITS, Pool
from workbench.scheduling.scheduler import Scheduler
from workbench.scheduling.slots import SlotTable
from workbench.scheduling.ticket import Event, Priority
from workbench.schema import EventLog
from workbench.schema.envelopes import Envelope
from workbench.simulate.passes import Pass
from workbench.simulate.prefetchers import PrefetchConfig, Prefetcher, make_prefetcher
from workbench.simulate.stages import StageTimes
from workbench.simulate.wire import Wire
from workbench.units import NS_PER_MS, NS_PER_US, PAGE_BYTES, align_up

_NUM_PAGES = 1 << 24
"""Pages of the n-gram store: far more than a trace touches."""


class TwinConfig(Config):
    """What the twin imitates."""

    num_slots: int = Field(ge=1)
    """Record slots of the cache."""
    policy: str = "lfru"
    """Eviction policy."""
    record_bytes: int = Field(2_764_800, ge=1)
    """Bytes of one record."""
    num_experts: int = Field(512, ge=1)
    """Experts of a layer."""
    order: Literal["barrier", "ready"] = "barrier"
    """`barrier`: the shared and all routed experts run when the last record is there. `ready`: the shared expert runs
    while records come, and each routed expert as soon as its own is there."""
    prefetch: PrefetchConfig = PrefetchConfig()
    """Predictions."""
    depth: int = Field(32, ge=1)
    """Most record reads in flight."""
    idle_ms: float = Field(0.0, ge=0)
    """Time between two turns, milliseconds: a tool runs, a person reads."""
    hot_set: int = Field(0, ge=0)
    """Most records that are warmed (P3) in that time for the sequence that goes on, hottest of its own first."""
    ple_pages: int = Field(0, ge=0)
    """N-gram pages a token needs before layer `ple_layer`; each is a new random page."""
    ple_layer: int = Field(1, ge=0)
    """Layer index that waits for them."""
    seed: int = 0
    """Of pages and of an oracle's errors."""


class Twin:
    """One session on one machine that does not exist."""

    def __init__(self, config: TwinConfig, stages: StageTimes, envelope: Envelope, log: EventLog | None = None) -> None:
        """Events go to `log`, a new one where none is given. Raises BadInput when the policy can't run live."""
        if config.policy == "belady":
            raise BadInput("policy belady needs the future, which a scheduler has not; `workbench simulate misses` replays it")
        self.config = config
        self.log = EventLog() if log is None else log
        self._stages = stages
        self._rng = np.random.default_rng(config.seed)
        pools = [_record_pool(config)] + ([_page_pool(config)] if config.ple_pages else [])
        lanes = LaneConfig(depth={"expert": config.depth, "ple": max(1, config.ple_pages)})
        scheduler = Scheduler(pools, SchedulerConfig(lanes=lanes))
        self._wire = Wire(scheduler, Disk(envelope), VirtualClock(), self.log)
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
        pages = self._demand_pages(each)
        for layer, keys in enumerate(each.keys):
            if pages is not None and layer == self.config.ple_layer:
                self._wire.wait(pages, position=each.position)
                self._wire.scheduler.release(pages)
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
        shared_us, experts_us = share * self._stages.shared_us[layer], share * self._stages.experts_us[layer]
        if self.config.order == "barrier":
            self._wire.wait(demand, position=each.position)
            self._compute(shared_us + experts_us)
            return
        self._compute(shared_us)
        remaining = list(demand.slots)
        one_us = experts_us / len(remaining)
        while remaining:
            ready = self._wire.wait_for_any(demand, remaining, position=each.position)
            self._compute(one_us * len(ready))
            remaining = [key for key in remaining if key not in ready]

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

    def _demand_pages(self, each: Pass) -> Demand | None:
        if not self.config.ple_pages:
            return None
        pages = np.unique(self._rng.integers(_NUM_PAGES, size=self.config.ple_pages)).tolist()
        event = Event(request=each.request, phase=each.phase, layer=self.config.ple_layer)
        return self._wire.demand("ple", pages, event, position=each.position, logical_bytes=len(pages) * PAGE_BYTES)

    def _settle(self) -> None:
        """What the layer before used was evaluated: its slots may go."""
        if self._held is not None:
            self._wire.scheduler.release(self._held)
            self._held = None

    def _compute(self, us: float) -> None:
        clock = self._wire.clock
        clock.sleep_until(clock.now_ns() + round(us * NS_PER_US))


def _record_pool(config: TwinConfig) -> Pool:
    # a record starts anywhere in a page, so its window has a page more
    moved = align_up(config.record_bytes, PAGE_BYTES) + PAGE_BYTES
    return Pool(
        name="expert",
        digest="",
        slots=SlotTable(config.num_slots, make(config.policy, capacity=config.num_slots)),
        sizes=lambda key, bits: (config.record_bytes, moved),
        parts=(RECORD_BITS,),
    )


def _page_pool(config: TwinConfig) -> Pool:
    num_slots = 2 * config.ple_pages
    slots = SlotTable(num_slots, make("lru", capacity=num_slots))
    return Pool(name="ple", digest="", slots=slots, sizes=lambda key, bits: (PAGE_BYTES, PAGE_BYTES))
