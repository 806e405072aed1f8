"""Events of the scheduler's decisions: the live runtime and the twin write the same events."""

from collections.abc import Collection, Sequence
from typing import Any

from workbench.loading.joint import JointDemand
from workbench.scheduling.limits import Budget
from workbench.scheduling.ticket import NEVER_NS, Demand, Intent, Origin, PrefetchResult, Priority, Ticket, Usefulness
from workbench.schema import EventLog, fingerprint

_OWNERS = {"layer": "expert"}


def owner_of(pool: str) -> str:
    """Store name for events of a pool: chunks of layers count as records."""
    return _OWNERS.get(pool, pool)


class Recorder:
    """Writes demands, predictions, waits and ended tickets to an event log."""

    def __init__(self, log: EventLog) -> None:
        self.log = log

    def mark(self, store: str, name: str, value: float, origin: Origin, now_ns: int) -> None:
        """Logs a named figure of an origin."""
        self.log.append_values(_MARK_COLUMNS, (*_about(origin, now_ns, "mark", store), name, float(value)))

    def wave(self, demand: Demand | JointDemand, name: str, start_ns: int, ready_ns: int, *, count: int) -> None:
        """Logs a wave: `name` (gate_up or down) of `count` records, demanded at `start_ns` and complete at `ready_ns`."""
        about, duration_ns = _about(demand.origin, start_ns, "wave", demand.store), max(0, ready_ns - start_ns)
        self.log.append_values(_WAVE_COLUMNS, (*about, name, count, duration_ns))

    def demand(self, demand: Demand, keys: Sequence[int], now_ns: int, *, logical_bytes: int, num_rows: int | None) -> None:
        """Logs a demand of `keys`."""
        about = _about(demand.origin, now_ns, "demand", demand.store)
        identity = fingerprint(keys) if demand.store == "expert" else None
        counts = len(demand.hits), len(demand.joined), len(demand.misses)
        self.log.append_values(_DEMAND_COLUMNS, (*about, identity, *counts, logical_bytes, num_rows))

    def prediction(
        self, origin: Origin, predictor: str, num_keys: int, made: PrefetchResult, priority: Priority, budget: Budget, now_ns: int
    ) -> None:
        """Logs a prediction of `num_keys` keys for an origin, its result, and the budget of its class."""
        about, deadline_ns = _about(origin, now_ns, "predict", "expert"), _or_none(origin.deadline_ns)
        counts = len(made.protected), len(made.tickets) - made.num_planned, made.num_planned, len(made.refused)
        most = budget.num_bytes, budget.slots, budget.reads
        values = (*about, predictor, int(priority), float(num_keys), deadline_ns, *counts, *most)
        self.log.append_values(_PREDICT_COLUMNS, values)

    def wait(self, demand: Demand | JointDemand, start_ns: int, end_ns: int, *, guarded: int, consumed: int) -> None:
        """Logs an exposed wait for `guarded` keys, of which the next stage uses `consumed`."""
        about = _about(demand.origin, start_ns, "wait", owner_of(demand.store))
        self.log.append_values(_WAIT_COLUMNS, (*about, guarded, consumed, end_ns - start_ns))

    def union(self, origin: Origin, keys: Sequence[int], now_ns: int, *, hits: int, joined: int, logical_bytes: int) -> None:
        """Logs the routed `keys` of a layer that is read whole: `hits` records were complete, `joined` were in flight."""
        about, counts = _about(origin, now_ns, "demand", "expert"), (hits, joined, len(keys) - hits - joined)
        self.log.append_values(_DEMAND_COLUMNS, (*about, fingerprint(keys), *counts, logical_bytes, None))

    def rejected(self, origin: Origin, store: str, num_rows: int, num_bytes: int, now_ns: int) -> None:
        """Logs rejected rows of a block, from the origin's position on; `num_bytes` were read for these rows alone."""
        about = _about(origin, now_ns, "rejected", store)
        self.log.append_values(_REJECTED_COLUMNS, (*about, float(num_rows), num_bytes))

    def chunk(self, ticket: Ticket, keys: Sequence[int], used: Collection[int]) -> None:
        """Logs a finished chunk as one ticket per record: `used`, or wasted where the router did not choose the record."""
        if not ticket.issued:
            return
        count, whole = len(keys), dict(zip(_TICKET_COLUMNS, self._values(ticket), strict=True))
        share = {
            "name": "chunk",
            "store": "expert",
            "intent": Intent.PREDICTED.value,
            "logical_bytes": ticket.logical_bytes // count,
            "physical_bytes": ticket.physical_bytes // count,
            "value": (whole["value"] or 1.0) / count,
        }
        for place, key in enumerate(keys):
            row = whole | share | {"identity": key}
            if not place:
                row["physical_bytes"] += ticket.physical_bytes % count
            if key not in used and ticket.outcome is not Usefulness.FAILED:
                row["outcome"] = Usefulness.UNUSED.value
            self.log.append(row)

    def ticket(self, ticket: Ticket) -> None:
        """Logs a final ticket; a ticket without a read leaves no event."""
        if ticket.issued:
            self.log.append_values(_TICKET_COLUMNS, self._values(ticket))

    def _values(self, ticket: Ticket) -> tuple[Any, ...]:
        """Values of a ticket's event, in the order of `_TICKET_COLUMNS`."""
        origin, ready_ns, asked_ns, deadline_ns = ticket.origin, ticket.ready_ns, ticket.asked_ns, ticket.deadline_ns
        is_ready, first_ns = ready_ns != NEVER_NS, deadline_ns if deadline_ns < asked_ns else asked_ns
        return (
            ticket.issue_ns,
            "ticket",
            ticket.store,
            ticket.digest or None,
            ticket.key,
            origin.request,
            origin.phase,
            origin.position if origin.position >= 0 else None,
            origin.layer,
            ticket.token_mask,
            ticket.generation,
            ticket.owner,
            str(ticket.intent),
            ticket.predictor or None,
            ticket.confidence,
            int(ticket.planned_priority),
            int(ticket.priority),
            str(ticket.outcome) if ticket.outcome is not None else None,
            ticket.submit_ns,
            ticket.issue_ns,
            ready_ns if is_ready else None,
            ticket.seen_ns if is_ready else None,
            asked_ns if asked_ns != NEVER_NS else None,
            deadline_ns if deadline_ns != NEVER_NS else None,
            first_ns if first_ns != NEVER_NS else None,
            ticket.logical_bytes,
            ticket.physical_bytes,
            ticket.slot,
            ticket.num_demands,
            ticket.completion if ticket.completion >= 0 else None,
            ticket.queue_depth,
            ticket.read_calls or None,
        )


_COLUMNS = "t_ns", "kind", "request", "phase", "layer", "position", "store"
_MARK_COLUMNS = *_COLUMNS, "name", "value"
_WAVE_COLUMNS = *_COLUMNS, "name", "consumed", "duration_ns"
_DEMAND_COLUMNS = *_COLUMNS, "identity", "hits", "joined", "misses", "logical_bytes", "value"
_PREDICT_COLUMNS = (
    *_COLUMNS, "name", "priority", "value", "deadline_ns", "hits", "joined", "misses", "refused", "budget_bytes", "budget_slots",
    "budget_reads",
)  # fmt: skip
_WAIT_COLUMNS = *_COLUMNS, "guarded", "consumed", "duration_ns"
_REJECTED_COLUMNS = *_COLUMNS, "value", "logical_bytes"
_TICKET_COLUMNS = (
    "t_ns", "kind", "store", "digest", "identity", "request", "phase", "position", "layer", "token_mask", "generation", "owner",
    "intent", "predictor", "confidence", "priority", "ended_priority", "outcome", "submit_ns", "issue_ns", "ready_ns", "seen_ns",
    "asked_ns", "expected_ns", "deadline_ns", "logical_bytes", "physical_bytes", "slot", "leases", "completion", "queue_depth",
    "value",
)  # fmt: skip


def _about(origin: Origin, t_ns: int, kind: str, store: str) -> tuple[Any, ...]:
    """Values of each event, in the order of `_COLUMNS`."""
    return t_ns, kind, origin.request, origin.phase, origin.layer, origin.position, store


def _or_none(time_ns: int) -> int | None:
    return None if time_ns == NEVER_NS else time_ns
