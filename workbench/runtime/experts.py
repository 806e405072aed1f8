"""Routed experts from disk: read when the native router says so, computed in waves as their bytes arrive."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from workbench.geometry import Geometry
from workbench.loading.joint import JointDemand
from workbench.loading.predicting import Predicting
from workbench.loading.transfer import Transfer
from workbench.loading.wait import Loading
from workbench.loading.waves import run_in_waves
from workbench.model.state import LONGEST_BLOCK
from workbench.runtime.engine import Members
from workbench.runtime.evaluation import Evaluation
from workbench.runtime.expert_math import ExpertMath
from workbench.runtime.flow import TileWork
from workbench.runtime.hit_table import HitTable
from workbench.runtime.lane import Lane
from workbench.runtime.prefill import Prefill
from workbench.runtime.routed_tokens import RoutedTokens
from workbench.scheduling.ticket import Demand, Scope, WaveSize


class StreamedExperts:
    """Routed experts read from an ExpertMajor store into a pool of slots."""

    def __init__(
        self,
        geometry: Geometry,
        transfer: Transfer,
        math: ExpertMath,
        evaluation: Evaluation,
        wave: WaveSize,
        *,
        prefill: Prefill,
        hit_table: HitTable | None = None,
        predicting: Predicting | None = None,
    ) -> None:
        """`wave`: fewest missing experts that run together. `prefill`: runs tiles of a prompt.

        `hit_table`: resolve hits on the device, before the host has seen the route. `predicting`: is told of each route.
        """
        self.geometry, self.transfer, self.math, self.evaluation, self.wave = geometry, transfer, math, evaluation, wave
        self.hit_table, self.predicting = hit_table, predicting
        self._prefill = prefill

    @property
    def capacity(self) -> int:
        """Most records that one demand may name."""
        return self.transfer.scheduler.pools["expert"].slots.capacity

    def begin_pass(self, lane: Lane) -> None:
        """Begins a pass of a lane. A pass that is no prompt tile ends prefill: slots that prefill borrowed return to the pool."""
        if lane.scope.phase == "prefill" and lane.scope.num_tokens > LONGEST_BLOCK:
            lane.tile = self._prefill.begin_tile(lane.scope)
        else:
            self._prefill.end()

    def group(self, layer: int, members: Members) -> "ExpertGroup":
        """The experts that the routers of `members` chose."""
        return ExpertGroup(self, layer, members)


class ExpertGroup:
    """The experts of one layer, on the rows of one lane or of several that meet there."""

    def __init__(self, experts: StreamedExperts, layer: int, members: Members) -> None:
        self._experts, self._layer = experts, layer
        self._lanes = [lane for lane, _ in members]
        self._routes = {lane: routed.route for lane, routed in members}
        self._joint: JointDemand | None = None

    @property
    def _scope(self) -> Scope:
        return self._lanes[0].scope

    def leave(self, lane: Lane) -> None:
        """A lane failed or was cancelled: the others go on without it."""
        self._lanes.remove(lane)
        if self._joint is not None:
            self._joint.leave(lane.request)

    def run(self) -> Loading[list[mx.array]]:
        """Values `[T, k, H]` of each lane's rows."""
        if self._runs_ahead:
            return [(yield from self._run_ahead())]
        hidden = [self._routes[lane].hidden for lane in self._lanes]
        keys = {lane: self._read_back(lane, self._routes[lane].ids) for lane in self._lanes}
        if len(keys) == 1:
            block = RoutedTokens(hidden[0], keys[self._lanes[0]])
        else:
            block = RoutedTokens(mx.concatenate(hidden), np.concatenate(list(keys.values())))
        tile = self._lanes[0].tile
        if tile is not None:
            yield from tile.run(self._layer, TileWork(block, self._experts.evaluation, self._scope), block.heat)
        else:
            yield from self._run_block(block, keys)
        return self._split(block.result(), keys)

    def _split(self, values: mx.array, keys: Mapping[Lane, np.ndarray]) -> list[mx.array]:
        """Each lane's part of the values of all rows; lanes that left get none."""
        if len(keys) == 1:
            return [values]
        parts, start = [], 0
        for lane, mine in keys.items():
            if lane in self._lanes:
                parts.append(values[start : start + len(mine)])
            start += len(mine)
        return parts

    def _read_back(self, lane: Lane, ids: mx.array) -> np.ndarray:
        """Record keys `[T, k]` of a lane's route."""
        chosen = self._experts.evaluation.read_back(lane.scope, self._layer, ids)
        lane.routes.read_back(chosen)
        # reading the ids back has evaluated everything before, so the slots of the layer before are free to go
        lane.release_held(self._experts.transfer)
        return chosen.astype(np.int64) + self._layer * self._experts.geometry.num_experts

    def _run_block(self, block: RoutedTokens, keys: Mapping[Lane, np.ndarray]) -> Loading[None]:
        """All experts of a block, as many at a time as slots hold."""
        start = 0
        while start < len(block.keys):
            if start:
                self._experts.evaluation.finish(self._scope, *block.pieces)
                for lane in self._lanes:
                    lane.release_held(self._experts.transfer)
            chunk = block.keys[start : start + self._experts.capacity]
            demand = yield from self._load(chunk, keys)
            if not start:
                self._look(keys)
            yield from self._run_demand(block, demand, chunk)
            start += len(chunk)

    def _look(self, keys: Mapping[Lane, np.ndarray]) -> None:
        """Passes the chosen ids to the predictor, after their exact demand is queued."""
        if self._experts.predicting is not None:
            first_key = self._layer * self._experts.geometry.num_experts
            for lane in self._lanes:
                self._experts.predicting.routed(lane.scope, self._layer, keys[lane] - first_key)

    def _load(self, chunk: Sequence[int], keys: Mapping[Lane, np.ndarray]) -> Loading[Demand | JointDemand]:
        """Demands records for each lane, which holds them until they have been computed."""
        if len(self._lanes) == 1:
            lane = self._lanes[0]
            demand = yield from self._experts.transfer.load(
                "expert", chunk, lane.scope.origin(self._layer), logical_bytes=self._num_bytes(chunk)
            )
            self._hold(lane, keys[lane], demand)
            return demand
        wanted = {lane: [key for key in chunk if key in mine] for lane, mine in self._sets(keys).items()}
        while (demands := self._ask_all(wanted)) is None:
            yield self._experts.transfer.slots_wait()
        for lane, demand in demands.items():
            self._hold(lane, keys[lane], demand)
        self._joint = JointDemand(list(demands.values()))
        return self._joint

    def _sets(self, keys: Mapping[Lane, np.ndarray]) -> dict[Lane, set[int]]:
        return {lane: set(keys[lane].ravel().tolist()) for lane in self._lanes}

    def _ask_all(self, wanted: Mapping[Lane, Sequence[int]]) -> dict[Lane, Demand] | None:
        """A demand for each remaining lane, or None: a lane that waits for slots pins none."""
        transfer, demands, asked_ns = self._experts.transfer, {}, self._experts.transfer.clock.now_ns()
        for lane in self._lanes:
            demand = transfer.ask("expert", wanted[lane], lane.scope.origin(self._layer)) if wanted[lane] else None
            if demand is not None:
                demands[lane] = demand
            elif wanted[lane]:
                for each in demands.values():
                    transfer.release(each)
                return None
        for lane, demand in demands.items():
            num_bytes = self._num_bytes(wanted[lane])
            transfer.recorder.demand(demand, wanted[lane], asked_ns, logical_bytes=num_bytes, num_rows=None)
        return demands

    def _hold(self, lane: Lane, keys: np.ndarray, demand: Demand) -> None:
        lane.held.append(demand)
        lane.note_reads("expert", keys, demand, self._experts.geometry.record_bytes)

    def _num_bytes(self, keys: Sequence[int]) -> int:
        return len(keys) * self._experts.geometry.record_bytes

    def _run_demand(self, block: RoutedTokens, demand: Demand | JointDemand, keys: Sequence[int]) -> Loading[None]:
        experts = self._experts
        if experts.evaluation.stage_hook is not None:
            yield from self._run_in_stages(block, demand, keys)
        elif not demand.tickets:
            # the last layer's dispatch takes these along
            experts.math.run(block, keys, demand.slots)
        else:
            work = ExpertDispatch(experts.math, experts.evaluation, block, self._scope)
            yield from run_in_waves(experts.transfer, demand, keys, work, experts.wave)

    def _run_in_stages(self, block: RoutedTokens, demand: Demand | JointDemand, keys: Sequence[int]) -> Loading[None]:
        """All experts of a demand together, gate and up apart from down."""
        math, run_stage = self._experts.math, self._experts.evaluation.stage
        yield from self._experts.transfer.wait(demand)
        inner = run_stage("gate_up", self._layer, lambda: math.gate_up(block, keys, demand.slots))
        before = len(block.pieces)

        def down() -> list[mx.array]:
            math.down(block, keys, demand.slots, inner)
            return block.pieces[before:]

        run_stage("down", self._layer, down)

    # ---- hits before the host has seen the route ----------------------------------------------------------------------

    @property
    def _runs_ahead(self) -> bool:
        experts = self._experts
        if experts.hit_table is None or experts.evaluation.stage_hook is not None:
            return False
        if len(self._lanes) > 1 or self._lanes[0].tile is not None:
            return False
        return self._routes[self._lanes[0]].ids.size <= experts.capacity

    def _run_ahead(self) -> Loading[mx.array]:
        """Hits are dispatched before the host has seen which they are; it waits for the list of misses only."""
        experts, lane, table = self._experts, self._lanes[0], self._experts.hit_table
        route = self._routes[lane]
        assert table is not None
        keys = route.ids.astype(mx.int32) + self._layer * experts.geometry.num_experts
        missing, hits = table.dispatch(route.hidden, keys)
        lacking = experts.evaluation.read_back(lane.scope, self._layer, missing)
        lane.release_held(experts.transfer)
        mine = np.array(keys).astype(np.int64)
        block = RoutedTokens(route.hidden, mine)
        late = [key for key in dict.fromkeys(lacking.ravel().tolist()) if key >= 0]
        demands = self._ask_all({lane: block.keys})
        if demands is None:
            # while a demand waits for slots, hits may leave theirs: nothing of what ran ahead counts
            yield from self._run_block(block, {lane: mine})
        else:
            demand = demands[lane]
            self._hold(lane, mine, demand)
            self._look({lane: mine})
            block.put_whole(hits)
            if late:
                yield from self._run_demand(block, demand, late)
        if late:
            table.hold(late, lane.held[-1].slots)
        return block.result()


class ExpertDispatch:
    """Dispatches the experts of a block and knows which pieces are still being computed."""

    def __init__(self, math: ExpertMath, evaluation: Evaluation, block: RoutedTokens, scope: Scope) -> None:
        self._math, self._evaluation, self._block, self._scope = math, evaluation, block, scope
        self._running: deque[mx.array] = deque()

    def run(self, keys: Sequence[int], slots: Mapping[int, int]) -> None:
        """Dispatches whole experts."""
        before = len(self._block.pieces)
        self._math.run(self._block, keys, slots)
        self._send(self._block.pieces[before:])

    def gate_up(self, keys: Sequence[int], slots: Mapping[int, int]) -> list[mx.array]:
        """Dispatches `silu(gate) * up` of experts."""
        inner = self._math.gate_up(self._block, keys, slots)
        self._send(inner)
        return inner

    def down(self, keys: Sequence[int], slots: Mapping[int, int], inner: Any) -> None:
        """Dispatches the down products of what `gate_up` gave."""
        before = len(self._block.pieces)
        self._math.down(self._block, keys, slots, inner)
        self._send(self._block.pieces[before:])

    def sync_piece(self) -> bool:
        """Returns when the oldest dispatched piece was computed; False when there is none."""
        if not self._running:
            return False
        self._evaluation.finish(self._scope, self._running.popleft())
        return True

    def _send(self, outputs: Sequence[mx.array]) -> None:
        self._evaluation.send(*outputs)
        self._running.extend(outputs)
