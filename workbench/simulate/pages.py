"""N-gram pages in the twin: which ones a pass needs, and how it asks and waits for them."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from workbench.scheduling.demand import Demand
from workbench.scheduling.ticket import Event
from workbench.simulate.passes import Pass
from workbench.simulate.wire import Wire
from workbench.units import PAGE_BYTES


def drawn_pages(whole: Iterable[Pass], *, layer: int, per_token: int, reuse: float, seed: int) -> list[Pass]:
    """The passes with made-up pages for `layer`, `per_token` a token.

    With chance `reuse` a page is one that an earlier token needed, any of them alike; else it is a new one.
    """
    rng = np.random.default_rng(seed)
    num_known = 0
    made = []
    for each in whole:
        keys: dict[int, None] = {}
        for is_old, draw in rng.random((each.num_tokens * per_token, 2)).tolist():
            if num_known and is_old < reuse:
                keys[int(draw * num_known)] = None
            else:
                keys[num_known] = None
                num_known += 1
        made.append(replace(each, pages={layer: tuple(keys)}))
    return made


class PageStage:
    """Pages of the pass under way: asked for before its first layer, as many as fit, and waited for where a layer needs them."""

    def __init__(self, wire: Wire, num_slots: int) -> None:
        self._wire, self._num_slots = wire, num_slots
        self._coming: dict[int, tuple[list[Sequence[int]], Demand]] = {}

    def start(self, each: Pass) -> None:
        """Asks for each PLE layer's first pages; each has an equal part of the slots."""
        for layer, keys in each.pages.items():
            room = self._num_slots // len(each.pages)
            parts: list[Sequence[int]] = [keys[start : start + room] for start in range(0, len(keys), room)]
            self._coming[layer] = (parts, self._demand(each, layer, parts[0]))

    def wait(self, each: Pass, layer: int) -> None:
        """Waits for the pages of a layer, part by part, and lets them go."""
        parts, demand = self._coming.pop(layer, ([], None))
        for index, keys in enumerate(parts):
            if index or demand is None:
                demand = self._demand(each, layer, keys)
            self._wire.wait(demand, position=each.position)
            self._wire.scheduler.release(demand)

    def _demand(self, each: Pass, layer: int, keys: Sequence[int]) -> Demand:
        event = Event(request=each.request, phase=each.phase, layer=layer)
        return self._wire.demand("ple", keys, event, position=each.position, logical_bytes=len(keys) * PAGE_BYTES)
