"""The bandwidth that a bound uses: given, or of Gate A's envelope of this disk, or probed on the very store before the run.

Never taken from the run itself.
"""

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from workbench.analysis.storage_envelope import latest_envelope
from workbench.paths import runs_folder, store_folder
from workbench.readers import Read, aligned_buffer, open_reader
from workbench.runtime.engine import RuntimeConfig
from workbench.stores import open_store
from workbench.units import GB, NS_PER_S, PAGE_BYTES, align_down, align_up


@dataclass(frozen=True, kw_only=True)
class Bandwidth:
    """Bytes per second and where the figure comes from."""

    bytes_per_s: float
    source: str


def known_bandwidth(given_gbps: float | None, profile: str, config: RuntimeConfig, probe_s: float) -> Bandwidth:
    """The given figure, else that of records in the disk's newest envelope, else a probe of the profile's store.

    The envelope is Gate A's of this machine, filesystem and profile, and holds for uncached reads; the probe takes `probe_s`
    seconds and reads the way the run reads.
    """
    if given_gbps is not None:
        return Bandwidth(bytes_per_s=given_gbps * GB, source=f"given: {given_gbps:g} GB/s")
    envelope = latest_envelope(runs_folder(), profile) if config.uncached else None
    if envelope is not None and envelope.measured is not None:
        gbps = envelope.measured.expert.bandwidth_gbps
        return Bandwidth(bytes_per_s=gbps * GB, source=f"{envelope.source}: {gbps:.3g} GB/s of records")
    bytes_per_s = probe_bandwidth(store_folder(profile), config, probe_s)
    how = "uncached" if config.uncached else "buffered: the page cache may serve it"
    source = f"probe: {bytes_per_s / GB:.3g} GB/s, {probe_s:g} s of record windows, {config.expert_depth} at once, {how}"
    return Bandwidth(bytes_per_s=bytes_per_s, source=source)


def probe_bandwidth(store: Path, config: RuntimeConfig, probe_s: float, seed: int = 0) -> float:
    """Bytes per second of random record windows with `expert_depth` reads in flight for `probe_s` seconds."""
    experts = open_store(store).experts
    records = [experts.record(layer.layer, expert) for layer in experts.layers for expert in range(experts.num_experts)]
    order = np.random.default_rng(seed).permutation(len(records))
    longest = max(align_up(record.end, PAGE_BYTES) - align_down(record.offset, PAGE_BYTES) for record in records)
    depth = config.expert_depth
    memory = aligned_buffer(depth * longest).reshape(depth, longest)
    moved = issued = 0
    sizes = [0] * depth
    with open_reader(uncached=config.uncached, depth={"expert": depth}, coalesce_bytes=0) as reader:
        file = reader.open_file(experts.path)

        def send(slot: int) -> None:
            nonlocal issued
            record = records[order[issued % len(order)]]
            low, high = align_down(record.offset, PAGE_BYTES), align_up(record.end, PAGE_BYTES)
            sizes[slot], into = high - low, memory[slot, : high - low]
            reader.submit([Read(key=slot, file=file, offset=low, num_bytes=high - low, into=into, need_bytes=record.end - low)])
            issued += 1

        start_ns = time.monotonic_ns()
        for slot in range(depth):
            send(slot)
        while (now_ns := time.monotonic_ns()) - start_ns < probe_s * NS_PER_S:
            for completion in reader.poll(1.0):
                if completion.error is not None:
                    raise completion.error
                moved += sizes[completion.key]
                send(completion.key)
        return moved / ((now_ns - start_ns) / NS_PER_S)
