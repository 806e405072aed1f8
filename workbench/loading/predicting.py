"""Predictions: asks a predictor at each router or tap, and prefetches the predicted keys.

A predictor moves bytes and never decides: its keys are read within the budgets of their class, behind every exact read.
"""

import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import NoneType
from typing import Any

import numpy as np

from workbench.errors import BadInput
from workbench.loading.transfer import Transfer
from workbench.prediction.base import Predictor, RouteShape
from workbench.readers.clock import Clock
from workbench.scheduling.limits import SPECULATIVE
from workbench.scheduling.ticket import MASK_BITS, NEVER_NS, WHOLE_TILE, Origin, PredictedKey, Scope, Ticket
from workbench.schema.generated import GENERATION_PHASES

Until = Callable[[int, int], int]
"""`(layer, lead)` -> nanoseconds from the router of a layer to the one `lead` layers ahead; `NEVER_NS` while unknown."""

_AVERAGED_ROUTERS = 32
"""Time constant of the running mean of times between routers, in routers."""


class RouterClock:
    """Measures the time from one router to the next, to tell when a layer ahead will ask for its experts."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_ns: dict[int, int] = {}
        self._mean_ns = 0.0

    def note(self, request: int) -> None:
        """Notes that a router of a request has chosen experts."""
        now_ns = self._clock.now_ns()
        last_ns = self._last_ns.get(request)
        if last_ns is not None:
            took_ns = now_ns - last_ns
            self._mean_ns = took_ns if not self._mean_ns else self._mean_ns + (took_ns - self._mean_ns) / _AVERAGED_ROUTERS
        self._last_ns[request] = now_ns

    def pause(self, request: int) -> None:
        """Leaves the time until a request's next router out of the mean: the request pauses."""
        self._last_ns.pop(request, None)

    def until(self, layer: int, lead: int) -> int:
        """Expected nanoseconds until the router `lead` layers ahead (`Until`); the same for every layer."""
        return round(lead * self._mean_ns) if self._mean_ns else NEVER_NS


class Predicting:
    """Runs one predictor: asks it for keys, checks and prefetches them, and withdraws unread ones that their layer has passed.

    Requests share the router clock and nothing else that changes.
    """

    def __init__(self, transfer: Transfer, predictor: Predictor, shape: RouteShape, until: Until | None = None) -> None:
        """`until`: expected times between layers; default: measured during the run."""
        self._transfer, self._predictor, self._shape = transfer, predictor, shape
        self._routers = RouterClock(transfer.clock)
        self._until = until or self._routers.until
        if predictor.priority not in SPECULATIVE or not isinstance(predictor.lead_layers, int):
            raise BadInput(f"predictor {predictor.name}: its priority must be P1, P2 or P3, its lead_layers a whole number")
        self._waiting: dict[int, list[tuple[tuple[int, int], tuple[Ticket, ...]]]] = {}

    @property
    def wants_taps(self) -> bool:
        """Whether the predictor looks at the residual before attention."""
        return self._predictor.looks_at == "tap"

    def look(self, scope: Scope, layer: int, tensors: Mapping[str, Any]) -> None:
        """Asks a tap predictor before attention of a layer; `tensors` hold the wide residual `x`."""
        if self.wants_taps and scope.phase in GENERATION_PHASES:
            self._predict(scope, layer, tensors)

    def routed(self, scope: Scope, layer: int, ids: np.ndarray) -> None:
        """Asks a router predictor after a router chose `ids [T, k]`; their exact demand is queued already."""
        self._withdraw(scope.request, (scope.position, layer))
        if scope.phase in GENERATION_PHASES:
            self._routers.note(scope.request)
            if not self.wants_taps:
                self._predict(scope, layer, {"ids": ids})

    def committed(self, scope: Scope, keys: Sequence[Sequence[Sequence[int]] | np.ndarray]) -> None:
        """Tells the predictor the record keys of committed tokens, by layer and then by token."""
        if scope.phase not in GENERATION_PHASES:
            self._routers.pause(scope.request)
        for layer, rows in enumerate(keys):
            if len(rows):
                self._ask_predictor(layer, partial(self._predictor.committed, scope, layer, rows))

    def cancel(self, request: int) -> None:
        """Drops what is known of a request whose pass was cancelled; the scheduler ends its predictions."""
        self._routers.pause(request)
        self._waiting.pop(request, None)

    def _withdraw(self, request: int, point: tuple[int, int]) -> None:
        """Cancels unread predictions of a request up to a point that its sequence has reached."""
        waiting = self._waiting.get(request, [])
        while waiting and waiting[0][0] <= point:
            for ticket in waiting.pop(0)[1]:
                if not ticket.issued:
                    self._transfer.scheduler.cancel_ticket(ticket)

    def _check(self, keys: Sequence[PredictedKey]) -> int:
        """The one layer that all keys belong to. Raises BadInput on anything else: predictors may come from users' files."""
        name, num_experts = self._predictor.name, self._shape.num_experts
        for each in keys:
            if not isinstance(each, PredictedKey):
                raise BadInput(f"predictor {name} must name PredictedKey objects, it named {each!r}")
            whole = all(isinstance(value, int) for value in (each.key, each.token_mask, each.deadline_ns))
            if not (whole and 0 <= each.probability <= 1 and WHOLE_TILE <= each.token_mask < 1 << MASK_BITS):
                raise BadInput(f"predictor {name}: no such key, probability, token mask or deadline: {each!r}")
        target = keys[0].key // num_experts
        first, last = min(each.key for each in keys), max(each.key for each in keys)
        if first // num_experts != target or last // num_experts != target or not 0 <= target < self._shape.num_layers:
            raise BadInput(f"predictor {name} must name keys of one layer, it named {first} to {last}")
        return target

    def _lead(self, layer: int, key: int) -> int:
        """Layers from the present one to that of a predicted key: the predictor's lead, else the next occurrence of the layer."""
        num_layers, lead = self._shape.num_layers, self._predictor.lead_layers
        ahead = (key // self._shape.num_experts - layer) % num_layers
        if lead % num_layers == ahead:
            return lead
        return ahead or (0 if self.wants_taps else num_layers)

    def _ask_for_keys(self, scope: Scope, layer: int, tensors: Mapping[str, Any]) -> Sequence[PredictedKey]:
        """Keys that the predictor names. Raises BadInput, in one line, where the code of a user's predictor fails."""
        keys = self._ask_predictor(layer, lambda: self._predictor.look(scope, layer, tensors))
        if not isinstance(keys, list | tuple | NoneType):
            raise BadInput(f"predictor {self._predictor.name} must return a list of PredictedKey, it returned {keys!r:.80}")
        return keys or ()

    def _ask_predictor(self, layer: int, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except BadInput:
            raise
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            what = f"{type(error).__name__}: {error} ({where.filename}, line {where.lineno})"
            raise BadInput(f"predictor {self._predictor.name} fails at layer {layer}: {what}") from error

    def _predict(self, scope: Scope, layer: int, tensors: Mapping[str, Any]) -> None:
        keys = self._ask_for_keys(scope, layer, tensors)
        if not keys:
            return
        target, lead = self._check(keys), self._lead(layer, keys[0].key)
        tokens_ahead = (layer + lead) // self._shape.num_layers
        transfer, now_ns = self._transfer, self._transfer.clock.now_ns()
        until_ns = self._until(layer, lead)
        origin = Origin(
            request=scope.request,
            phase=scope.phase,
            layer=target,
            position=scope.position + tokens_ahead * scope.num_tokens,
            deadline_ns=NEVER_NS if until_ns == NEVER_NS else now_ns + until_ns,
        )
        priority, name = self._predictor.priority, self._predictor.name
        made = transfer.prefetch("expert", keys, origin, priority, name)
        budget = transfer.scheduler.config.limits.budgets[priority]
        transfer.recorder.prediction(origin, name, len(keys), made, priority, budget, now_ns)
        self._waiting.setdefault(scope.request, []).append((origin.point, made.tickets))
