"""The future as an oracle knows it: from the twin's own passes, or from a route trace of the tokens that a live run decodes."""

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
    """Records that one layer of one row of a pass will need."""

    number: int
    """Of the row among all rows of its future: draws of an oracle belong to it."""
    keys: Sequence[int]
    """Distinct, best first."""
    token: int = 0
    """Of the pass; 0 where one row stands for a whole pass."""


class FutureRoutes(ABC):
    """Which records passes will need."""

    num_rows: int
    """Rows that are known."""
    widest: int
    """Most records of a layer of a row."""

    @abstractmethod
    def rows(self, scope: Scope, layer: int, passes_ahead: int) -> list[KnownRow]:
        """Keys that `layer` needs in the pass `passes_ahead` after the pass of `scope`; empty: unknown."""


class PassFuture(FutureRoutes):
    """Passes in the order in which they run, across all requests. One row is a pass: the union of its tokens."""

    def __init__(self, passes: Sequence[tuple[int, int, Sequence[Sequence[int]]]]) -> None:
        """`passes`: request, position of the first token, and the records of each layer."""
        self._keys = [keys for _, _, keys in passes]
        self._number = {(request, position): number for number, (request, position, _) in enumerate(passes)}
        self.num_rows = len(passes)
        self.widest = max((len(keys) for layers in self._keys for keys in layers), default=0)

    def rows(self, scope: Scope, layer: int, passes_ahead: int) -> list[KnownRow]:
        """See `FutureRoutes.rows`."""
        number = self._number[scope.request, scope.position] + passes_ahead
        return [KnownRow(number, self._keys[number][layer])] if number < self.num_rows else []


class TokenFuture(FutureRoutes):
    """Tokens of a route trace, whatever passes they are decoded in. One row is a token."""

    def __init__(self, frame: pl.DataFrame, shape: RouteShape) -> None:
        """`frame`: in `ROUTE_SCHEMA`. Raises BadInput unless it holds each layer of each token once, and one token at least."""
        ordered = frame.sort("request", "position", "layer")
        tokens = ordered.select("request", "position").unique(maintain_order=True).rows()
        if not tokens or ordered["layer"].to_list() != list(range(shape.num_layers)) * len(tokens):
            raise BadInput(f"a future needs each of {shape.num_layers} layers once per token, got {frame.height} routes")
        experts = np.array(ordered["experts"].to_list(), np.int64).reshape(-1, shape.num_layers, shape.top_k)
        self._keys = experts + np.arange(shape.num_layers)[:, None] * shape.num_experts
        self._number = {token: number for number, token in enumerate(tokens)}
        self._requests = {request for request, _ in tokens}
        self.num_rows = len(tokens)
        self.widest = shape.top_k

    def rows(self, scope: Scope, layer: int, passes_ahead: int) -> list[KnownRow]:
        """See `FutureRoutes.rows`. The pass ahead is taken to be as long as the present one, all of whose tokens are kept."""
        if scope.request not in self._requests and scope.request >= 0:
            known = ", ".join(map(str, sorted(self._requests)[:5]))
            raise BadInput(f"the recorded routes have no request {scope.request} (they have {known}): record those of this run")
        first = scope.position + passes_ahead * scope.num_tokens
        numbers = [self._number.get((scope.request, first + token)) for token in range(scope.num_tokens)]
        found = [(token, number) for token, number in enumerate(numbers) if number is not None]
        return [KnownRow(number, self._keys[number, layer].tolist(), token) for token, number in found]
