"""Warming: while generation is idle, the records that a sequence used most and latest are read again (P3)."""

from collections.abc import Sequence

from workbench.loading.transfer import Transfer
from workbench.policies.hot_set import HotSet
from workbench.scheduling.ticket import Origin, PredictedKey, Priority

NAME = "hot_set"
"""Name of the predictor in events."""


class Warming:
    """The hot set of one sequence, kept between its turns while other requests use the cache."""

    def __init__(self, transfer: Transfer, *, most: int) -> None:
        """`most`: most records that are prefetched in one idle time."""
        self._transfer, self._most = transfer, most
        self._hot = HotSet()

    def use(self, keys: Sequence[int]) -> None:
        """Counts the records that one layer of a committed pass used."""
        self._hot.use(keys)

    def stand_idle(self, request: int, duration_ns: int) -> None:
        """Returns after `duration_ns`; until then the missing records of the sequence of `request` are read, hottest first.

        Reads that have not completed by then go on when nothing else wants the disk.
        """
        transfer = self._transfer
        end_ns = transfer.clock.now_ns() + duration_ns
        absent = self._hot.missing(transfer.scheduler.pools["expert"].slots.resident_keys, self._most)
        transfer.prefetch("expert", [PredictedKey(key) for key in absent], Origin(request=request), Priority.P3, NAME)
        idle_until(transfer, end_ns)


def idle_until(transfer: Transfer, end_ns: int) -> None:
    """Handles completions and submits reads until `end_ns`."""
    while transfer.num_in_flight and transfer.clock.now_ns() < end_ns:
        transfer.stand_by(end_ns)
    transfer.clock.sleep_until(end_ns)
