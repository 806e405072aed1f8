"""A lane: one request's sequence, the pass under way, and everything that the pass holds. Lanes share nothing that changes."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from workbench.loading.transfer import Transfer
from workbench.loading.wait import Loading, Wait
from workbench.model.state import SequenceState
from workbench.runtime.forward import ForwardPass
from workbench.runtime.prefill import TilePass
from workbench.runtime.route_log import RouteLog
from workbench.scheduling.ticket import Demand, Scope
from workbench.schema import EventLog

Accept = Callable[[np.ndarray], int]
"""Called with the logits of a pass's rows; says how many of its first tokens are committed."""


@dataclass(slots=True, eq=False)
class Job:
    """Work under way for a lane, or for several that meet at a layer; it ends with one answer for each lane."""

    lanes: "list[Lane]"
    work: Loading[list[Any]]
    leave: "Callable[[Lane], None]"
    """Called when a lane leaves the job early and other lanes remain."""
    wait: Wait | None = None

    @property
    def is_ready(self) -> bool:
        """Whether the work can continue."""
        return self.wait is None or self.wait.is_ready()

    def resume(self) -> None:
        """Runs the work until it waits or ends; the lanes get their answers at its end."""
        try:
            self.wait = next(self.work)
        except StopIteration as end:
            for lane, answer in zip(self.lanes, end.value, strict=True):
                lane.job, lane.answer = None, answer

    def remove(self, lane: "Lane") -> None:
        """Removes a failed or cancelled lane; the job continues for the other lanes."""
        self.lanes.remove(lane)
        if self.lanes:
            self.leave(lane)
        else:
            self.work.close()


@dataclass(slots=True, eq=False)
class _PassReads:
    """Keys that the rows of a block demanded, kept until it is known which rows are committed."""

    store: str
    keys: np.ndarray
    """Demanded keys `[T, k]`, by row."""
    demand: Demand
    key_bytes: int


@dataclass(slots=True, eq=False, repr=False)
class Lane:
    """One request. Its engine alone changes it."""

    request: int
    state: SequenceState
    routes: RouteLog
    scope: Scope = field(default_factory=lambda: Scope(0, "prefill", 0))
    """The pass under way, or the last one."""
    tokens: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """Tokens of the pass under way."""
    accept: Accept | None = None
    """Returns how many tokens of a block are committed; None: all are."""
    forward_pass: ForwardPass | None = None
    """The pass under way; None between passes."""
    job: Job | None = None
    """Work that the pass waits for."""
    answer: Any = None
    """Answer to the last request of the forward pass."""
    rows: dict[int, Any] = field(default_factory=dict)
    """N-gram rows that the pass will read, by layer; the row backend's own objects."""
    held: list[Demand] = field(default_factory=list)
    """Records that dispatched compute still reads."""
    tile: TilePass | None = None
    """How the layers of a prompt's tile are read."""
    block_reads: list[_PassReads] = field(default_factory=list)
    lockstep: "LockstepGroup | None" = None
    """Lanes whose passes run in lockstep with this one."""
    start_ns: int = 0
    sent_ns: int = 0
    logits: np.ndarray | None = None
    """Logits of the last pass: float32 `[rows, vocab]`."""
    num_committed: int = 0
    """Tokens that the last pass committed."""
    error: Exception | None = None
    """The error of the last pass; None: it was committed."""

    def note_reads(self, store: str, keys: np.ndarray, demand: Demand, key_bytes: int) -> None:
        """Notes that the rows of a block demanded `keys [T, k]`; keys of rejected rows are accounted for at the commit."""
        if self.scope.num_tokens > 1 and self.accept is not None:
            self.block_reads.append(_PassReads(store, keys, demand, key_bytes))

    def begin(self, tokens: np.ndarray, phase: str, accept: Accept | None) -> None:
        """A pass over `tokens [T]` begins: one transaction of the state."""
        self.scope = Scope(self.request, phase, self.state.position, len(tokens))
        self.tokens, self.accept = tokens, accept
        self.answer = self.error = self.logits = None
        self.sent_ns = self.num_committed = 0
        self.start_ns = time.monotonic_ns()
        self.state.begin()

    def commit(self, num_tokens: int, logits: np.ndarray) -> np.ndarray:
        """Keeps the first `num_tokens` tokens of the pass: their routes `[num_tokens, layers, k]`."""
        if not isinstance(num_tokens, int | np.integer) or not 0 <= num_tokens <= self.scope.num_tokens:
            raise ValueError(f"{num_tokens!r} of {self.scope.num_tokens} tokens can't be committed")
        num_tokens = int(num_tokens)
        self.state.commit(num_tokens)
        self.logits, self.num_committed = logits, num_tokens
        return self.routes.commit(self.scope, self.tokens, num_tokens)

    def abort(self) -> None:
        """Restores the state of the last commit, if the pass is still open."""
        if self.state.is_open:
            self.state.abort()
        self.routes.abort()

    def end(self) -> None:
        """Ends the pass, committed or not: drops its work and rows. Demands in `held`, whose slots compute still reads, stay."""
        if self.forward_pass is not None:
            self.forward_pass.close()
        if self.tile is not None:
            self.tile.close()
        self.forward_pass = self.job = self.lockstep = self.tile = None
        self.rows.clear()

    def note_end(self, transfer: Transfer, log: EventLog) -> None:
        """Notes the committed tokens, and what was read for rejected ones, whose predictions are demoted."""
        scope, now_ns, committed = self.scope, time.monotonic_ns(), self.num_committed
        if committed < scope.num_tokens:
            origin = scope.origin(-1)._replace(position=scope.position + committed)
            for store, num_bytes in self._rejected_bytes(committed).items():
                transfer.recorder.rejected(origin, store, scope.num_tokens - committed, num_bytes, now_ns)
            transfer.scheduler.reject(self.request, scope.position + committed)
        self.block_reads.clear()
        if committed:
            row = {"t_ns": now_ns, "kind": "token", "request": self.request, "phase": scope.phase}
            row["position"], row["duration_ns"] = self.state.position - 1, now_ns - self.start_ns
            row["value"], row["committed_tokens"] = float(committed), committed
            log.append(row)

    def release_held(self, transfer: Transfer) -> None:
        """Releases the demands of dispatched compute that has been evaluated: their records may be evicted."""
        while self.held:
            transfer.release(self.held.pop())

    def _rejected_bytes(self, num_tokens: int) -> dict[str, int]:
        """Bytes, by store, that were read for rows behind the first `num_tokens` alone."""
        found: dict[str, int] = {}
        for reads in self.block_reads:
            alone = set(reads.keys[num_tokens:].ravel().tolist()) - set(reads.keys[:num_tokens].ravel().tolist())
            count = len(alone.intersection(reads.demand.misses))
            found[reads.store] = found.get(reads.store, 0) + count * reads.key_bytes
        return found


class LockstepGroup:
    """Lanes whose passes began together and run in lockstep: the experts of a layer run once, for the rows of all lanes."""

    def __init__(self, lanes: "list[Lane]") -> None:
        self.lanes = lanes
        self._arrived: dict[int, tuple[Lane, Any]] = {}

    def arrive(self, lane: Lane, routed: Any) -> list[tuple[Lane, Any]] | None:
        """All lanes with their routes, once the last lane has arrived; None before."""
        self._arrived[lane.request] = (lane, routed)
        return self._complete()

    def has_arrived(self, lane: Lane) -> bool:
        """Whether a lane has arrived and waits for the others."""
        return lane.request in self._arrived

    def leave(self, lane: Lane) -> list[tuple[Lane, Any]] | None:
        """Removes a lane, for which the others no longer wait; all other lanes, if they have arrived."""
        self.lanes = [other for other in self.lanes if other is not lane]
        self._arrived.pop(lane.request, None)
        return self._complete()

    def _complete(self) -> list[tuple[Lane, Any]] | None:
        if not self.lanes or len(self._arrived) < len(self.lanes):
            return None
        arrived = [self._arrived[lane.request] for lane in self.lanes]
        self._arrived = {}
        return arrived


def next_ready(lanes: "deque[Lane]") -> Lane | None:
    """The next lane, in turn, that can continue; None when every lane waits for bytes."""
    for _ in range(len(lanes)):
        lane = lanes[0]
        lanes.rotate(-1)
        if lane.job is not None:
            if lane.job.is_ready:
                return lane
        elif lane.lockstep is None or not lane.lockstep.has_arrived(lane):
            return lane
    return None
