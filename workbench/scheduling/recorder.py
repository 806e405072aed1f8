"""What the scheduler did, as events: the live runtime and the twin write the same ones."""

from collections.abc import Sequence

from workbench.scheduling.demand import Demand
from workbench.scheduling.ticket import NEVER_NS, Ticket
from workbench.schema import EventLog, fingerprint


class Recorder:
    """Writes demands, waits and ended tickets to an event log."""

    def __init__(self, log: EventLog) -> None:
        self.log = log
        self._depths: dict[int, int] = {}

    def submitted(self, tickets: Sequence[Ticket], depth: int) -> None:
        """Reads of `tickets` went off, and `depth` reads are now in flight."""
        for ticket in tickets:
            self._depths[ticket.number] = depth

    def demand(
        self, demand: Demand, keys: Sequence[int], now_ns: int, *, position: int, logical_bytes: int, num_rows: int | None
    ) -> None:
        """An event asked for `keys`."""
        event = demand.event
        self.log.add(
            now_ns,
            "demand",
            store=demand.store,
            request=event.request,
            phase=event.phase,
            position=position,
            layer=event.layer,
            identity=fingerprint(keys) if demand.store == "expert" else None,
            hits=len(demand.hits),
            joined=len(demand.joined),
            misses=len(demand.misses),
            logical_bytes=logical_bytes,
            value=num_rows,
        )

    def wait(self, demand: Demand, start_ns: int, end_ns: int, *, position: int, guarded: int, consumed: int) -> None:
        """Compute stood still for `guarded` keys, of which its next stage uses `consumed`."""
        event = demand.event
        self.log.add(
            start_ns,
            "wait",
            store=demand.store,
            request=event.request,
            phase=event.phase,
            layer=event.layer,
            position=position,
            guarded=guarded,
            consumed=consumed,
            duration_ns=end_ns - start_ns,
        )

    def ticket(self, ticket: Ticket) -> None:
        """A ticket reached its final state; one that was never read leaves no event."""
        if not ticket.issued:
            return
        event = ticket.event
        self.log.add(
            ticket.issue_ns,
            "ticket",
            store=ticket.store,
            identity=ticket.key,
            request=event.request,
            phase=event.phase,
            layer=event.layer,
            intent=ticket.intent.value,
            outcome=ticket.outcome.value if ticket.outcome else None,
            submit_ns=ticket.submit_ns,
            ready_ns=_or_none(ticket.ready_ns),
            seen_ns=_or_none(ticket.seen_ns),
            deadline_ns=_or_none(ticket.deadline_ns),
            logical_bytes=ticket.logical_bytes,
            physical_bytes=ticket.physical_bytes,
            queue_depth=self._depths.pop(ticket.number, None),
        )


def _or_none(time_ns: int) -> int | None:
    return None if time_ns == NEVER_NS else time_ns
