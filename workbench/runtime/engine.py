"""The engine: one loop in which decode, prompts, blocks that are verified and several requests are cases (`Engine.step`)."""

from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Protocol, Self

import mlx.core as mx
import numpy as np

from workbench.errors import BadInput
from workbench.loading.predicting import Predicting
from workbench.loading.transfer import RequestFailed, Transfer, request_failed
from workbench.loading.wait import Loading
from workbench.model.model import Model
from workbench.model.ngram import row_ids
from workbench.model.state import LONGEST_BLOCK
from workbench.runtime.evaluation import Evaluation
from workbench.runtime.forward import Done, Routed, RowsNeeded, Tap, forward
from workbench.runtime.lane import Accept, Job, Lane, LockstepGroup, next_ready
from workbench.runtime.route_log import RouteLog, RouteSink
from workbench.schema import EventLog

Members = Sequence[tuple[Lane, Routed]]
"""Lanes at one layer, each with its router's choice."""


class Group(Protocol):
    """The experts of one layer, on the rows of one lane or of several."""

    def run(self) -> Loading[list[mx.array]]:
        """Values `[T, k, H]` of each lane's rows."""

    def leave(self, lane: Lane) -> None:
        """A lane failed or was cancelled: the others go on without it."""


class ExpertBackend(Protocol):
    """Computes routed experts."""

    def begin_pass(self, lane: Lane) -> None:
        """A pass of a lane begins."""

    def group(self, layer: int, members: Members) -> Group:
        """The experts that the routers of `members` chose."""


class RowBackend(Protocol):
    """Loads n-gram rows."""

    def announce(self, lane: Lane, layer: int, row_ids: np.ndarray) -> None:
        """A lane's pass will read the rows `[T, heads]` of `layer`."""

    def load(self, lane: Lane, layer: int) -> Loading[list[mx.array]]:
        """The announced rows, heads side by side: float32 `[T, ple_embed_dim]`."""


class Engine:
    """A model, its experts and rows, and the lanes that compute on them."""

    resident_bytes: int
    """Weights as they are held in memory."""
    cache_bytes: int
    """Bytes of slots and pages."""
    identity: dict[str, str]
    """Digests of what the engine computes on, for a result's tags."""

    def __init__(
        self,
        model: Model,
        experts: ExpertBackend,
        rows: RowBackend,
        transfer: Transfer,
        evaluation: Evaluation,
        log: EventLog,
        predicting: Predicting | None = None,
    ) -> None:
        self.model, self.experts, self.rows = model, experts, rows
        self.transfer, self.evaluation, self.log = transfer, evaluation, log
        self._predicting = predicting
        self._lanes: deque[Lane] = deque()

    # ---- the loop -----------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Resumes one lane up to its next stage; waits for bytes when every lane waits for some."""
        self.transfer.collect()
        lane = next_ready(self._lanes)
        if lane is None:
            self._wait()
            return
        try:
            match self._resume(lane):
                case None:
                    pass
                case Routed() as routed:
                    lane.routes.note(routed.layer, routed.route)
                    self._meet(lane, routed)
                case RowsNeeded(layer):
                    lane.job = Job([lane], self.rows.load(lane, layer), _nobody_left)
                case Tap(layer, x):
                    self._look(lane, layer, x)
                case Done(logits):
                    self._commit(lane, self.evaluation.read(lane.scope, logits))
        except RequestFailed as error:
            self._fail(lane, error)
        except Exception as error:
            # also one of a verifier, a predictor or a sink: it ends the passes that it is about, no other one
            for each in lane.job.lanes[:] if lane.job is not None else [lane]:
                self._fail(each, error)
        except BaseException:
            for each in lane.job.lanes[:] if lane.job is not None else [lane]:
                self._drop(each)
            raise

    def _resume(self, lane: Lane) -> Any:
        """Resumes a lane's job, then its stages: the stage that they yield, or None while the job is not done."""
        sent_ns = self.evaluation.sent_ns
        if lane.job is not None:
            lane.job.resume()
        stage = None
        if lane.job is None and lane.forward_pass is not None:
            answer, lane.answer = lane.answer, None
            stage = lane.forward_pass.send(answer)
        lane.sent_ns += self.evaluation.sent_ns - sent_ns
        return stage

    def _wait(self) -> None:
        """Every lane waits: fails lanes whose bytes can't be read; else syncs a piece of compute, or waits exposed."""
        jobs = list(dict.fromkeys(lane.job for lane in self._lanes if lane.job is not None))
        waits = [job.wait for job in jobs if job.wait is not None]
        failures = [demand for wait in waits for demand in wait.failures]
        for demand in failures:
            self._fail(self._lane(demand.origin.request), request_failed(demand))
        if failures:
            return
        if self.transfer.num_in_flight or any(wait.demand is not None for wait in waits) or len(self._lanes) < 2:
            self.transfer.advance(waits)
        else:
            # each lane waits for slots that another lane pins: the youngest pass gives way
            small = f"the cache is too small for {len(self._lanes)} requests at once"
            youngest = max(self._lanes, key=lambda lane: lane.start_ns)
            self._fail(youngest, RequestFailed(f"{small}: give it more bytes, or run fewer requests together"))

    def _look(self, lane: Lane, layer: int, x: mx.array) -> None:
        if self._predicting is not None:
            # a copy: a predictor that assigns to it must not change what is computed
            self._predicting.look(lane.scope, layer, {"x": mx.array(x)})

    # ---- lanes that meet ------------------------------------------------------------------------------------------------

    def _meet(self, lane: Lane, routed: Routed) -> None:
        members: Members | None = [(lane, routed)]
        if lane.lockstep is not None:
            members = lane.lockstep.arrive(lane, routed)
        self._start_group(members)

    def _start_group(self, members: Members | None) -> None:
        if members:
            group = self.experts.group(members[0][1].layer, members)
            job = Job([lane for lane, _ in members], group.run(), group.leave)
            for lane, _ in members:
                lane.job = job

    # ---- passes -------------------------------------------------------------------------------------------------------

    def new_lane(self, request: int = 0, *, sink: RouteSink | None = None, follow_mtp: bool = False) -> Lane:
        """A lane for an empty sequence. `follow_mtp`: its MTP head's cache follows the trunk, so that it can draft."""
        state = self.model.new_state(follow_mtp=follow_mtp)
        return Lane(request=request, state=state, routes=RouteLog(self.log, self.model.geometry.num_experts, sink))

    def start(self, lane: Lane, tokens: np.ndarray, phase: str, *, accept: Accept | None = None) -> None:
        """A pass of a lane over `tokens [T]` begins: one transaction.

        `accept`: says from the logits of all rows how many tokens are committed; without it all are, and only the last row
        has logits. Raises ValueError while another pass of the request is under way, and on tokens that the model does not have.
        """
        vocab_size = self.model.geometry.vocab_size
        if not len(tokens) or tokens.dtype.kind not in "iu" or not 0 <= int(tokens.min()) <= int(tokens.max()) < vocab_size:
            raise ValueError(f"a pass needs one token id of 0 to {vocab_size - 1} or more, got {tokens.tolist()[:8]}")
        if any(other.request == lane.request for other in self._lanes):
            raise ValueError(f"a pass of request {lane.request} is under way")
        lane.begin(tokens, phase, accept)
        self._lanes.append(lane)
        lane.forward_pass = forward(
            self.model,
            lane.state,
            tokens,
            num_logits=1 if accept is None else None,
            taps=self._predicting is not None and self._predicting.wants_taps,
            dispatch=self.evaluation.send,
            run_stage=self.evaluation.stage,
        )
        try:
            self.experts.begin_pass(lane)
            for layer, ids in row_ids(self.model.geometry, tokens, lane.state.context).items():
                self.rows.announce(lane, layer, ids)
        except BaseException:
            self._drop(lane)
            raise

    def run(self, *lanes: Lane) -> None:
        """Steps until no pass of `lanes` is under way. A lane that failed has an `error`.

        Raises the error of one of `lanes` that is no RequestFailed: a verifier's, a predictor's or a sink's.
        """
        running = [lane for lane in lanes if lane.forward_pass is not None]
        for lane in running:
            while lane.forward_pass is not None:
                self.step()
        for lane in running:
            if lane.error is not None and not isinstance(lane.error, RequestFailed):
                raise lane.error

    def join_lockstep(self, lanes: Sequence[Lane]) -> None:
        """The passes that `lanes` have just begun meet at every layer. Raises ValueError when one is a prompt's tile."""
        if any(lane.scope.num_tokens > LONGEST_BLOCK for lane in lanes):
            raise ValueError(f"only blocks of at most {LONGEST_BLOCK} tokens meet")
        lockstep = LockstepGroup(list(lanes))
        for lane in lanes:
            lane.lockstep = lockstep

    def cancel(self, lane: Lane) -> None:
        """Ends the pass of a lane, at whatever stage; the state is that of the last commit. Nothing, between passes."""
        if lane.forward_pass is not None:
            self._drop(lane)

    def _commit(self, lane: Lane, logits: np.ndarray) -> None:
        if not np.isfinite(logits).all():
            raise BadInput(
                f"the logits behind position {lane.scope.position} are not finite: a weight or a setting of the model is NaN or "
                "infinite; `workbench verify` tells whether the store is damaged"
            )
        accepted = lane.scope.num_tokens if lane.accept is None else lane.accept(logits)
        if lane.forward_pass is None:
            # `accept` has cancelled the pass
            return
        routes = lane.commit(accepted, logits)
        self._leave(lane)
        lane.release_held(self.transfer)
        self.evaluation.note_sent(lane.scope, lane.sent_ns)
        lane.note_end(self.transfer, self.log)
        # last: a predictor may fail, and the pass is committed and logged then
        if self._predicting is not None:
            first_keys = np.arange(routes.shape[1]) * self.model.geometry.num_experts
            self._predicting.committed(lane.scope, list((routes + first_keys[:, None]).swapaxes(0, 1)))
        self.log.roll()

    def _fail(self, lane: Lane, error: Exception) -> None:
        lane.error = error
        self._drop(lane)

    def _drop(self, lane: Lane) -> None:
        """Drops a lane's pass: state, routes, reads and pins are those of the last commit."""
        if lane not in self._lanes:
            return
        # dispatched compute may still read slots that other lanes are given now
        mx.synchronize()
        lane.abort()
        self._leave(lane)
        lane.held.clear()
        self.transfer.cancel(lane.request)
        if self._predicting is not None:
            self._predicting.cancel(lane.request)

    def _leave(self, lane: Lane) -> None:
        """Ends a lane's pass; lanes that meet it, or share its job, go on."""
        job, lockstep = lane.job, lane.lockstep
        self._lanes.remove(lane)
        lane.end()
        if job is not None:
            job.remove(lane)
        if lockstep is not None:
            self._start_group(lockstep.leave(lane))

    def _lane(self, request: int) -> Lane:
        return next(lane for lane in self._lanes if lane.request == request)

    # ---- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Cancels passes that are under way."""
        for lane in list(self._lanes):
            self._drop(lane)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _nobody_left(lane: Lane) -> None:
    """The `leave` of a job of one lane: no other lane is left that could continue."""
