"""A model of a disk: completion times of reads from the four numbers of an envelope. No bytes, no waiting."""

from workbench.schema.envelopes import Envelope
from workbench.units import GB, NS_PER_S, NS_PER_US


class Disk:
    """One pipe shared by all reads, limited in bytes and in reads per second, and a latency that each read has of its own.

    A read completes when both the pipe has served it and its own latency and transfer have passed.
    """

    def __init__(self, envelope: Envelope) -> None:
        self.envelope = envelope
        self._free_ns = 0.0
        # computed once: a replay needs them at every read
        self._pipe_bytes_per_s, self._stream_bytes_per_s = envelope.bandwidth_gbps * GB, envelope.stream_gbps * GB
        self._least_s, self._latency_ns = 1 / envelope.iops, envelope.latency_us * NS_PER_US
        self._costs_ns: dict[int, tuple[float, float]] = {}

    def ready_ns(self, submit_ns: int, num_bytes: int) -> int:
        """Completion time of a read submitted now. Reads must be passed in the order of their submission."""
        costs_ns = self._costs_ns.get(num_bytes)
        if costs_ns is None:
            costs_ns = self._costs_ns[num_bytes] = self._costs_of(num_bytes)
        share_ns, alone_ns = costs_ns
        self._free_ns = max(self._free_ns, submit_ns) + share_ns
        return round(max(self._free_ns, submit_ns + alone_ns))

    def _costs_of(self, num_bytes: int) -> tuple[float, float]:
        """Time for which a read occupies the shared pipe, and its time without other reads."""
        share_s = max(num_bytes / self._pipe_bytes_per_s, self._least_s)
        return NS_PER_S * share_s, self._latency_ns + NS_PER_S * num_bytes / self._stream_bytes_per_s
