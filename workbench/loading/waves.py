"""Waves: incremental dispatch of one layer's experts, resident ones first, the others as reads complete (hypothesis H4).

Which experts run together depends on the disk; where results are placed does not, so every order gives the same bits.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from workbench.loading.joint import JointDemand
from workbench.loading.transfer import Transfer
from workbench.loading.wait import Loading, Wait
from workbench.scheduling.pool import DOWN_BIT, GATE_UP_BITS, RECORD_BITS
from workbench.scheduling.ticket import Demand, WaveSize


class ExpertWork(Protocol):
    """Device work of one layer's experts. `slots`: slot of each key."""

    def run(self, keys: Sequence[int], slots: Mapping[int, int]) -> None:
        """Dispatches whole experts."""

    def gate_up(self, keys: Sequence[int], slots: Mapping[int, int]) -> Any:
        """Dispatches `silu(gate) * up` of experts; returns the argument `inner` of `down`."""

    def down(self, keys: Sequence[int], slots: Mapping[int, int], inner: Any) -> None:
        """Dispatches the down products of `inner`, which `gate_up` returned."""

    def sync_piece(self) -> bool:
        """Syncs the oldest dispatched piece of compute; False when there is none."""


def run_in_waves(
    transfer: Transfer, demand: Demand | JointDemand, keys: Iterable[int], work: ExpertWork, size: WaveSize
) -> Loading[None]:
    """Runs the experts `keys` of a demand: resident ones first, then missing ones, `size` or more together."""
    waves = _Waves(transfer, demand, work)
    if size == "barrier":
        yield from transfer.wait(demand)
        waves.run(list(keys))
        return
    transfer.collect()
    if not demand.tickets:
        work.run(list(keys), demand.slots)
        return
    wanted = set(keys)
    if hits := [key for key in demand.hits if key in wanted]:
        waves.run(hits)
    missing = [key for key in (*demand.joined, *demand.misses) if key in wanted]
    yield from waves.run_all(missing, len(missing) if size == "all" else size)


class _Waves:
    """The waves of one demand: its hits, then its misses as their reads complete."""

    def __init__(self, transfer: Transfer, demand: Demand | JointDemand, work: ExpertWork) -> None:
        self._transfer, self._demand, self._work = transfer, demand, work
        self._asked_ns = transfer.clock.now_ns()
        self._arriving: list[int] = []
        self._open: dict[int, tuple[list[int], Any]] = {}
        """Waves without their down reads, by first key: all keys, and the output of gate and up."""

    def run_all(self, keys: Sequence[int], size: int) -> Loading[None]:
        """Runs experts as their reads complete, `size` or more together; the last wave may be smaller."""
        self._arriving = list(keys)
        wait = Wait(self._demand, lambda: self._next(size), sync_piece=self._work.sync_piece)
        while self._arriving or self._open:
            self._transfer.collect()
            if (wave := self._next(size)) is None:
                wait.ready_keys, wait.keys = None, self._missing()
                yield wait
                assert wait.ready_keys is not None
                wave = wait.ready_keys
            if wave[0] not in self._open:
                self._arriving = [key for key in self._arriving if key not in wave]
            self.run(wave)

    def _missing(self) -> list[int]:
        """Keys whose reads are missing."""
        if not self._open:
            return self._arriving
        return [*self._arriving, *(key for wave, _ in self._open.values() for key in wave)]

    def _next(self, size: int) -> list[int] | None:
        """Keys of the wave that can run now: an open wave (its down), else a new wave; None while reads are missing."""
        # none is open unless records are read in parts
        for wave, _ in self._open.values() if self._open else ():
            if self._demand.have(wave, DOWN_BIT):
                return wave
        tickets = self._demand.tickets
        # inlined `Ticket.has`: this is asked several times for each missing record
        ready = [key for key in self._arriving if (ticket := tickets.get(key)) is None or not GATE_UP_BITS & ~ticket.ready_bits]
        return ready if ready and len(ready) >= min(size, len(self._arriving)) else None

    def run(self, keys: list[int]) -> None:
        """Dispatches gate and up of a wave, its down, or both: the components that are complete and not dispatched yet."""
        slots = self._demand.slots
        if keys[0] in self._open:
            _, inner = self._open.pop(keys[0])
            self._use(keys, DOWN_BIT, "down")
            self._work.down(keys, slots, inner)
        elif self._demand.have(keys, RECORD_BITS):
            self._use(keys, RECORD_BITS, "gate_up", "down")
            self._work.run(keys, slots)
        else:
            self._use(keys, GATE_UP_BITS, "gate_up")
            self._open[keys[0]] = keys, self._work.gate_up(keys, slots)

    def _use(self, keys: Sequence[int], components: int, *names: str) -> None:
        """Marks components as used; whether each ticket was on time is decided here."""
        self._transfer.use(self._demand, keys, components, self._asked_ns, names)
