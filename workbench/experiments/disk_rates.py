"""Disk rates for the choice of prefill mode: of single records and of large extents. Same sources as a bound's bandwidth."""

from pathlib import Path

from workbench.analysis.storage_envelope import latest_envelope
from workbench.experiments.bandwidth import Bandwidth
from workbench.experiments.disk_probe import Window, read_rate
from workbench.paths import runs_folder, store_folder
from workbench.runtime.config import RuntimeConfig
from workbench.runtime.crossover import DiskRates
from workbench.schema.envelopes import load_envelope
from workbench.stores import open_store
from workbench.units import GB, MIB, PAGE_BYTES, align_down, align_up

_EXTENT_BYTES = 16 * MIB


def known_rates(profile: str, config: RuntimeConfig, records: Bandwidth, probe_s: float) -> DiskRates:
    """Rates of single records (`records`) and of extents (from the emulated disk's envelope, else this disk's, else a probe).

    The probe takes `probe_s` seconds. The rate of extents is at least that of records.
    """
    extents = _extents(profile, config, probe_s)
    return DiskRates(
        sparse_bytes_per_s=records.bytes_per_s,
        sequential_bytes_per_s=max(extents.bytes_per_s, records.bytes_per_s),
        source=f"records: {records.source}; extents: {extents.source}",
    )


def _extents(profile: str, config: RuntimeConfig, probe_s: float) -> Bandwidth:
    emulated = load_envelope(config.envelope) if config.envelope else None
    envelope = emulated or (latest_envelope(runs_folder(), profile) if config.uncached else None)
    if envelope is not None:
        return Bandwidth(bytes_per_s=envelope.bandwidth_gbps * GB, source=f"{envelope.name}: {envelope.bandwidth_gbps:.3g} GB/s")
    path, windows = extent_windows(store_folder(profile))
    rate = read_rate(path, windows, depth=config.layer_depth, uncached=config.uncached, probe_s=probe_s).bytes_per_s
    return Bandwidth(bytes_per_s=rate, source=f"probe: {rate / GB:.3g} GB/s, {probe_s:g} s, {config.layer_depth} at once")


def extent_windows(store: Path) -> tuple[Path, list[Window]]:
    """The file of records, and its layers cut into large extents."""
    experts = open_store(store).experts
    windows = []
    for layer in experts.layers:
        first, last = experts.record(layer.layer, 0), experts.record(layer.layer, experts.num_experts - 1)
        for low in range(align_down(first.offset, PAGE_BYTES), last.end, _EXTENT_BYTES):
            end = min(low + _EXTENT_BYTES, last.end)
            windows.append(Window(offset=low, num_bytes=align_up(end, PAGE_BYTES) - low, need_bytes=end - low))
    return experts.path, windows
