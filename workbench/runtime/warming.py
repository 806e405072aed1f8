"""Warming: while generation stands still, the records that a sequence used most and latest come back (P3)."""

import numpy as np

from workbench.policies.hot_set import HotSet
from workbench.runtime.step import Step
from workbench.runtime.transfer import Transfer
from workbench.scheduling.ticket import Event, Priority, Ticket, TicketState
from workbench.units import NS_PER_MS

_LOOK_NS = NS_PER_MS
"""Time between two looks at what has come."""


class Warming:
    """One sequence's hot set, kept between its turns, whoever uses the cache meanwhile."""

    def __init__(self, transfer: Transfer, *, num_experts: int, most: int) -> None:
        """`most`: records that one idle time brings back at most."""
        self._transfer, self._num_experts, self._most = transfer, num_experts, most
        self._hot = HotSet()

    def note(self, step: Step, layer: int, tokens: np.ndarray, ids: np.ndarray, weights: np.ndarray) -> None:
        """A `RouteSink`: one layer of one pass used these experts."""
        self._hot.use((np.unique(ids) + layer * self._num_experts).tolist())

    def stand_idle(self, request: int, duration_ns: int) -> None:
        """Returns after `duration_ns`; until then what the sequence of `request` lacks is read, hottest first.

        Reads that have not come by then go on when nothing else wants the disk.
        """
        transfer, clock = self._transfer, self._transfer.clock
        end_ns = clock.now_ns() + duration_ns
        absent = self._hot.missing(transfer.scheduler.pools["expert"].slots.resident_keys, self._most)
        tickets = transfer.prefetch("expert", absent, Event(request=request), Priority.P3).tickets
        while clock.now_ns() < end_ns and any(map(_is_coming, tickets)):
            transfer.collect()
            clock.sleep_until(min(end_ns, clock.now_ns() + _LOOK_NS))
        clock.sleep_until(end_ns)


def _is_coming(ticket: Ticket) -> bool:
    return ticket.state in (TicketState.QUEUED, TicketState.IN_FLIGHT)
