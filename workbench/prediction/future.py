"""Future routes for oracles: from the twin's own passes, or from a route trace of the tokens that a live run decodes."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from workbench.errors import BadInput
from workbench.prediction.base import RouteShape
from workbench.scheduling.ticket import Scope


@dataclass(frozen=True, slots=True)
class KnownRow:
    """The record keys that one layer will need for one row: one token (`TokenFuture`) or one whole pass (`PassFuture`)."""

    number: int
    """Index of the row among all rows of the future; a noisy oracle draws its errors by this index."""
    keys: Sequence[int]
    """Distinct record keys, most urgent first."""
    token: int = 0
    """Index of the row's token within its pass; 0 when the row is a whole pass."""


class FutureRoutes(ABC):
    """The records that future passes will need, by row and layer."""

    num_rows: int
    """Number of known rows."""
    max_keys: int
    """Largest number of keys that any layer needs for any row."""

    @abstractmethod
    def rows(self, scope: Scope, layer: int, passes_ahead: int) -> list[KnownRow]:
        """The rows of `layer` in the pass that is `passes_ahead` after the pass of `scope`; empty: unknown."""


class PassFuture(FutureRoutes):
    """The future of passes in the order in which they run, across requests. Each row is one pass: the union of its tokens."""

    def __init__(self, passes: Sequence[tuple[int, int, Sequence[Sequence[int]]]]) -> None:
        """`passes`: for each pass, its request, the position of its first token, and the record keys of each layer."""
        self._keys = [keys for _, _, keys in passes]
        self._number = {(request, position): number for number, (request, position, _) in enumerate(passes)}
        self.num_rows = len(passes)
        self.max_keys = max((len(keys) for layers in self._keys for keys in layers), default=0)

    def rows(self, scope: Scope, layer: int, passes_ahead: int) -> list[KnownRow]:
        """See `FutureRoutes.rows`."""
        number = self._number[scope.request, scope.position] + passes_ahead
        return [KnownRow(number, self._keys[number][layer])] if number < self.num_rows else []


class TokenFuture(FutureRoutes):
    """The future of a route trace's tokens, however a live run groups them into passes. Each row is one token."""

    def __init__(self, frame: pl.DataFrame, shape: RouteShape) -> None:
        """`frame`: a trace in `ROUTE_SCHEMA`. Raises BadInput when it is empty or lacks or repeats a layer of a token."""
        ordered = frame.sort("request", "position", "layer")
        tokens = ordered.select("request", "position").unique(maintain_order=True).rows()
        if not tokens or ordered["layer"].to_list() != list(range(shape.num_layers)) * len(tokens):
            raise BadInput(f"an oracle needs each of {shape.num_layers} layers once per token, the trace has {frame.height} rows")
        experts = np.array(ordered["experts"].to_list(), np.int64).reshape(-1, shape.num_layers, shape.top_k)
        self._keys = experts + np.arange(shape.num_layers)[:, None] * shape.num_experts
        self._number = {token: number for number, token in enumerate(tokens)}
        self._requests = {request for request, _ in tokens}
        self.num_rows = len(tokens)
        self.max_keys = shape.top_k

    def rows(self, scope: Scope, layer: int, passes_ahead: int) -> list[KnownRow]:
        """See `FutureRoutes.rows`. Assumes that the present pass commits all of its tokens, and that the pass ahead is as long.

        Raises BadInput when the trace does not have the request.
        """
        if scope.request not in self._requests and scope.request >= 0:
            known = ", ".join(map(str, sorted(self._requests)[:5]))
            raise BadInput(f"the recorded routes have no request {scope.request} (they have {known}): record those of this run")
        first = scope.position + passes_ahead * scope.num_tokens
        numbers = [self._number.get((scope.request, first + token)) for token in range(scope.num_tokens)]
        found = [(token, number) for token, number in enumerate(numbers) if number is not None]
        return [KnownRow(number, self._keys[number, layer].tolist(), token) for token, number in found]
