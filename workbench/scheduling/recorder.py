"""What the scheduler did, as events: the live runtime and the twin write the same ones."""

from collections.abc import Collection, Sequence

from workbench.scheduling.demand import Demand
from workbench.scheduling.ticket import NEVER_NS, Event, Intent, Outcome, Ticket
from workbench.schema import EventLog, fingerprint

_OWNERS = {"layer": "expert"}


def owner_of(pool: str) -> str:
    """Whose bytes those of a pool are: chunks of layers are records."""
    return _OWNERS.get(pool, pool)


class Recorder:
    """Writes demands, waits and ended tickets to an event log."""

    def __init__(self, log: EventLog) -> None:
        self.log = log
        self._depths: dict[int, int] = {}
        self._calls: dict[int, float] = {}

    def submitted(self, tickets: Sequence[Ticket], depth: int) -> None:
        """Reads of `tickets` went off, and `depth` reads are now in flight."""
        for ticket in tickets:
            self._depths[ticket.number] = depth

    def landed(self, ticket: Ticket, together: int) -> None:
        """A read of `ticket` ended whose call carried `together` reads."""
        self._calls[ticket.number] = self._calls.get(ticket.number, 0.0) + 1 / together

    def mark(self, store: str, name: str, value: float, event: Event, now_ns: int, *, position: int) -> None:
        """A figure of one event."""
        where = {"request": event.request, "phase": event.phase, "layer": event.layer, "position": position}
        self.log.add(now_ns, "mark", name=name, store=store, value=float(value), **where)

    def wave(self, demand: Demand, name: str, start_ns: int, ready_ns: int, *, position: int, count: int) -> None:
        """Compute takes `name` (gate_up or down) of `count` records, demanded at `start_ns` and there at `ready_ns`."""
        event = demand.event
        self.log.add(
            start_ns,
            "wave",
            name=name,
            store=demand.store,
            request=event.request,
            phase=event.phase,
            layer=event.layer,
            position=position,
            consumed=count,
            duration_ns=max(0, ready_ns - start_ns),
        )

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
            store=owner_of(demand.store),
            request=event.request,
            phase=event.phase,
            layer=event.layer,
            position=position,
            guarded=guarded,
            consumed=consumed,
            duration_ns=end_ns - start_ns,
        )

    def union(
        self, event: Event, keys: Sequence[int], now_ns: int, *, position: int, hits: int, joined: int, logical_bytes: int
    ) -> None:
        """A router chose `keys` of a layer that passes through whole: so many records were there, so many on their way."""
        self.log.add(
            now_ns,
            "demand",
            store="expert",
            request=event.request,
            phase=event.phase,
            position=position,
            layer=event.layer,
            identity=fingerprint(keys),
            hits=hits,
            joined=joined,
            misses=len(keys) - hits - joined,
            logical_bytes=logical_bytes,
        )

    def chunk(self, ticket: Ticket, keys: Sequence[int], used: Collection[int]) -> None:
        """A ticket of many records ended: one event for each, read before the router had spoken, `used` or wasted."""
        if not ticket.issued:
            return
        event, count = ticket.event, len(keys)
        depth, calls = self._depths.pop(ticket.number, None), self._calls.pop(ticket.number, 1.0)
        outcome = ticket.outcome.value if ticket.outcome else None
        rest = ticket.physical_bytes % count
        for key in keys:
            self.log.add(
                ticket.issue_ns,
                "ticket",
                name="chunk",
                store="expert",
                identity=key,
                request=event.request,
                phase=event.phase,
                layer=event.layer,
                intent=Intent.PREDICTED.value,
                outcome=outcome if key in used or ticket.outcome is Outcome.FAILED else Outcome.UNUSED.value,
                submit_ns=ticket.submit_ns,
                ready_ns=_or_none(ticket.ready_ns),
                seen_ns=_or_none(ticket.seen_ns),
                deadline_ns=_or_none(min(ticket.deadline_ns, ticket.asked_ns)),
                logical_bytes=ticket.logical_bytes // count,
                physical_bytes=ticket.physical_bytes // count + (rest if key == keys[0] else 0),
                queue_depth=depth,
                value=calls / count,
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
            deadline_ns=_or_none(min(ticket.deadline_ns, ticket.asked_ns)),
            logical_bytes=ticket.logical_bytes,
            physical_bytes=ticket.physical_bytes,
            queue_depth=self._depths.pop(ticket.number, None),
            value=self._calls.pop(ticket.number, None),
        )


def _or_none(time_ns: int) -> int | None:
    return None if time_ns == NEVER_NS else time_ns
