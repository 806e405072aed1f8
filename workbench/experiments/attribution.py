"""Stage times of decoded tokens, measured in a phase of their own, since evaluating after each stage changes the timing.

The stages and their order are those of `workbench.runtime.forward`, plus `gate_up` and `down` of the experts. Stages `gdn` and
`qsa` include the attention's hyper-connection, stage `router` includes the MLP's.
"""

import time
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np

from workbench.model.moe import Route
from workbench.runtime.session import Session
from workbench.runtime.streamed import StreamedEngine
from workbench.schema import EventLog

PHASE = "attribution"


class StageClock:
    """Evaluates the result of each stage and logs the time that the stage took."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self.position = 0
        """Position of the decoded token in its sequence."""

    def run(self, name: str, layer: int, compute: Callable[[], Any]) -> Any:
        """Computes, evaluates and times one stage (`workbench.runtime.forward.RunStage`)."""
        start_ns = time.monotonic_ns()
        result = compute()
        mx.eval(result.ids, result.weights, result.hidden, result.inject) if isinstance(result, Route) else mx.eval(result)
        duration_ns = time.monotonic_ns() - start_ns
        self._log.add(start_ns, "stage", name=name, phase=PHASE, layer=layer, position=self.position, duration_ns=duration_ns)
        return result


def attribute(engine: StreamedEngine, session: Session, num_tokens: int) -> None:
    """Decodes `num_tokens` more tokens greedily with each stage evaluated and logged, phase `attribution`."""
    clock = StageClock(engine.log)
    engine.evaluation.stage_hook = clock.run
    try:
        token = int(np.argmax(np.array(session.state.arrays["logits"])[0]))
        for _ in range(num_tokens):
            clock.position = session.state.position
            token = int(np.argmax(session.decode(token, PHASE)))
    finally:
        engine.evaluation.stage_hook = None
