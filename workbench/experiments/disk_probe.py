"""Short probes of the disk under a store, with a run's read settings, right before the run that needs the figures."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from workbench.readers import Read, aligned_buffer, open_reader
from workbench.runtime.config import RuntimeConfig
from workbench.schema.envelopes import Envelope
from workbench.stores import open_store
from workbench.units import GB, NS_PER_S, NS_PER_US, PAGE_BYTES, align_down, align_up


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A read of whole pages of a file around a range of needed bytes."""

    offset: int
    num_bytes: int
    need_bytes: int
    """Bytes from `offset` to the end of the needed range."""


@dataclass(frozen=True, kw_only=True)
class Rate:
    """Throughput of one probe."""

    reads_per_s: float
    bytes_per_s: float


def record_windows(store: Path) -> tuple[Path, list[Window]]:
    """The file of records, and the page-aligned window of each record."""
    experts = open_store(store).experts
    extents = [experts.record(layer.layer, expert) for layer in experts.layers for expert in range(experts.num_experts)]
    windows = []
    for extent in extents:
        low, high = align_down(extent.offset, PAGE_BYTES), align_up(extent.end, PAGE_BYTES)
        windows.append(Window(offset=low, num_bytes=high - low, need_bytes=extent.end - low))
    return experts.path, windows


def read_rate(path: Path, windows: Sequence[Window], *, depth: int, uncached: bool, probe_s: float, seed: int = 0) -> Rate:
    """Throughput of reading the windows in random order, with `depth` reads in flight, for `probe_s` seconds.

    Raises the error of a read that failed.
    """
    order = np.random.default_rng(seed).permutation(len(windows)).tolist()
    longest = max(window.num_bytes for window in windows)
    memory = aligned_buffer(depth * longest).reshape(depth, longest)
    sizes = [0] * depth
    moved = issued = done = 0
    with open_reader(uncached=uncached, depth={"expert": depth}, coalesce_bytes=0) as reader:
        file = reader.open_file(path)

        def send(slot: int) -> None:
            nonlocal issued
            window = windows[order[issued % len(order)]]
            issued += 1
            sizes[slot], into = window.num_bytes, memory[slot, : window.num_bytes]
            places = {"file": file, "offset": window.offset, "num_bytes": window.num_bytes, "need_bytes": window.need_bytes}
            reader.submit([Read(key=slot, into=into, **places)])

        start_ns = time.monotonic_ns()
        for slot in range(depth):
            send(slot)
        while (now_ns := time.monotonic_ns()) - start_ns < probe_s * NS_PER_S or not done:
            for completion in reader.poll(1.0):
                if completion.error is not None:
                    raise completion.error
                moved, done = moved + sizes[completion.key], done + 1
                send(completion.key)
    seconds = (now_ns - start_ns) / NS_PER_S
    return Rate(reads_per_s=done / seconds, bytes_per_s=moved / seconds)


def probe_envelope(store: Path, config: RuntimeConfig, probe_s: float) -> Envelope:
    """Measures the disk's envelope with the read settings of `config`, in four probes of `probe_s` seconds each.

    Pages and records at depth 1 give latency and the rate of a single stream; records and pages at full depth give bandwidth
    and IOPS.
    """
    path, records = record_windows(store)
    pages = [Window(offset=window.offset, num_bytes=PAGE_BYTES, need_bytes=PAGE_BYTES) for window in records]
    rate = {
        (name, depth): read_rate(path, windows, depth=depth, uncached=config.uncached, probe_s=probe_s)
        for name, windows, depth in (
            ("page", pages, 1),
            ("record", records, 1),
            ("page", pages, config.ple_depth),
            ("record", records, config.expert_depth),
        )
    }
    alone_s = {name: 1 / rate[name, 1].reads_per_s for name in ("page", "record")}
    record_bytes = rate["record", 1].bytes_per_s / rate["record", 1].reads_per_s
    many = rate["record", config.expert_depth].bytes_per_s
    longer_s = alone_s["record"] - alone_s["page"]
    # when a record takes no longer than a page, the time difference gives no stream rate: use the full bandwidth
    stream = (record_bytes - PAGE_BYTES) / longer_s if longer_s > 0 else many
    return Envelope(
        name="probe",
        device="this disk",
        source=f"probe of {store}, {4 * probe_s:g} s",
        latency_us=max(alone_s["page"] - PAGE_BYTES / stream, 1e-7) * NS_PER_S / NS_PER_US,
        stream_gbps=stream / GB,
        bandwidth_gbps=many / GB,
        iops=rate["page", config.ple_depth].reads_per_s,
    )
