"""A session decodes one sequence on an engine: prompt in, one record per token out. Each pass is one transaction."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from workbench.errors import BadInput
from workbench.model.state import LONGEST_BLOCK, SequenceState
from workbench.runtime.engine import Engine
from workbench.runtime.forward import PREFILL_TILE
from workbench.runtime.lane import Accept, Lane
from workbench.runtime.route_log import RouteSink
from workbench.runtime.sampling import Sampler


@dataclass(frozen=True, kw_only=True)
class TokenRecord:
    """One generated token."""

    token_id: int
    position: int
    """Position of the token in the sequence."""
    t_ns: int
    """Time at which the token was chosen."""


class Session:
    """One sequence on one engine, pass after pass."""

    def __init__(
        self,
        engine: Engine,
        *,
        request: int = 0,
        tile: int = PREFILL_TILE,
        route_sink: RouteSink | None = None,
        follow_mtp: bool = False,
        beyond_positions: bool = False,
    ) -> None:
        """`route_sink`: gets the routes of committed tokens. `follow_mtp`: the MTP head's cache follows the trunk.

        `beyond_positions`: the sequence may grow longer than the positions that the model was made for.
        """
        self.engine = engine
        self.lane: Lane = engine.new_lane(request, sink=route_sink, follow_mtp=follow_mtp)
        self._tile = tile
        self._beyond_positions = beyond_positions

    @property
    def request(self) -> int:
        """Number of the request in events."""
        return self.lane.request

    @property
    def state(self) -> SequenceState:
        """State of the sequence at the last commit."""
        return self.lane.state

    @property
    def routing_digest(self) -> str:
        """SHA-256 over ids and weights of every committed token, by token and then by layer."""
        return self.lane.routes.digest

    def check_positions(self, num_tokens: int) -> None:
        """Raises BadInput when `num_tokens` more tokens would pass the model's last position, unless the session allows it."""
        end, most = self.state.position + num_tokens, self.engine.model.geometry.max_position_embeddings
        if end > most and not self._beyond_positions:
            raise BadInput(
                f"the sequence would have {end} tokens with its prompt, the model was made for {most}: shorten the prompt, lower "
                "max_tokens, or allow it with --set beyond_positions=true"
            )

    def prefill(self, tokens: Sequence[int]) -> np.ndarray:
        """Runs a prompt (or a turn's) in tiles: float32 logits `[vocab]` of its last token."""
        ids = np.asarray(tokens, dtype=np.int64)
        if not len(ids):
            raise ValueError("a prompt needs at least one token")
        for start in range(0, len(ids), self._tile):
            logits = self._pass(ids[start : start + self._tile], "prefill")
        return logits[-1]

    def decode(self, token: int, phase: str = "decode") -> np.ndarray:
        """Runs one token: float32 logits `[vocab]` of the next. `phase` names it in events."""
        return self._pass(np.array([token], dtype=np.int64), phase)[-1]

    def verify(self, tokens: Sequence[int], accept: Accept) -> np.ndarray:
        """Runs a block of tokens and commits as many of the first ones as `accept(logits)` says: logits `[T, vocab]`.

        `lane.num_committed` is their number. Raises ValueError on a block of more than `LONGEST_BLOCK` tokens.
        """
        if len(tokens) > LONGEST_BLOCK:
            raise ValueError(f"a block has at most {LONGEST_BLOCK} tokens, got {len(tokens)}")
        return self._pass(np.asarray(tokens, dtype=np.int64), "verify", accept)

    def _pass(self, tokens: np.ndarray, phase: str, accept: Accept | None = None) -> np.ndarray:
        lane = self.lane
        self.engine.start(lane, tokens, phase, accept=accept)
        try:
            self.engine.run(lane)
        except BaseException:
            # an interrupt may come between two stages: the state is that of the last commit
            self.engine.cancel(lane)
            raise
        if lane.error is not None:
            raise lane.error
        if lane.logits is None:
            raise ValueError("the pass was cancelled before its end")
        return lane.logits


def generate(
    session: Session, prompt: Sequence[int], max_tokens: int, sampler: Sampler, *, stop: frozenset[int] = frozenset()
) -> Iterator[TokenRecord]:
    """Prefills `prompt`, then yields up to `max_tokens` tokens; ends behind a token of `stop`.

    The last token is run too, so that a later turn goes on from the whole sequence. Raises BadInput, before anything is
    computed, where the sequence could pass the model's last position.
    """
    session.check_positions(len(prompt) + max_tokens)
    session.engine.log.add(time.monotonic_ns(), "mark", name="request_start", request=session.request)
    logits = session.prefill(prompt)
    for _ in range(max_tokens):
        token = sampler.choose(logits)
        yield TokenRecord(token_id=token, position=session.state.position, t_ns=time.monotonic_ns())
        logits = session.decode(token)
        if token in stop:
            return
