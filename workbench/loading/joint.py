"""Demands of several requests for one layer, whose experts are computed together."""

from collections import ChainMap
from collections.abc import Iterable, Sequence

from workbench.scheduling.ticket import Demand, Origin, Ticket


class _Slots(ChainMap[int, int]):
    """Slot of each key of all demands.

    A key of a request that left has none. Its rows are still part of the batch: they are computed on the expert in slot 0, and
    their values are discarded.
    """

    def __missing__(self, key: int) -> int:
        return 0


class JointDemand:
    """The demands of several requests as one, with the methods of `Demand` that waiting needs."""

    def __init__(self, demands: Sequence[Demand]) -> None:
        self._demands = list(demands)
        self._chain()
        self.hits: list[int] = []
        self.joined: list[int] = []
        """Keys that had a ticket already, or that more than one of the requests asked for."""
        self.misses: list[int] = []
        seen: set[int] = set()
        for demand in demands:
            for name in ("hits", "joined", "misses"):
                new = [key for key in getattr(demand, name) if key not in seen]
                getattr(self, name).extend(new)
                seen.update(new)

    def _chain(self) -> None:
        self.slots = _Slots(*(demand.slots for demand in self._demands))
        self.tickets: ChainMap[int, Ticket] = ChainMap(*(demand.tickets for demand in self._demands))

    @property
    def store(self) -> str:
        """Name of the pool."""
        return self._demands[0].store

    @property
    def origin(self) -> Origin:
        """Origin of the first remaining demand."""
        return self._demands[0].origin

    @property
    def failures(self) -> list[Demand]:
        """Demands whose reads have failed for good."""
        return [demand for demand in self._demands if demand.error is not None]

    def leave(self, request: int) -> None:
        """Removes the demand of a request that failed or was cancelled."""
        self._demands = [demand for demand in self._demands if demand.origin.request != request]
        self._chain()

    def have(self, keys: Iterable[int], components: int = -1) -> bool:
        """Whether `components` (bits) of all of `keys` are complete."""
        tickets = (self.tickets.get(key) for key in keys)
        return all(ticket is None or ticket.has(components) for ticket in tickets)

    def missing(self, now_ns: int, keys: Iterable[int] | None = None, components: int = -1) -> list[Ticket]:
        """`Demand.missing` of all demands without an error, each ticket once."""
        sound = [demand for demand in self._demands if demand.error is None]
        found = (demand.missing(now_ns, keys, components) for demand in sound)
        return list(dict.fromkeys(ticket for tickets in found for ticket in tickets))
