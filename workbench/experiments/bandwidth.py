"""The disk bandwidth for a run's time bound: given, from Gate A's envelope of this disk, or probed on the store before the run.

The bandwidth is never measured in the run itself.
"""

from dataclasses import dataclass
from pathlib import Path

from workbench.analysis.storage_envelope import latest_envelope
from workbench.experiments.disk_probe import read_rate, record_windows
from workbench.geometry import Geometry
from workbench.paths import runs_folder, store_folder
from workbench.runtime.config import RuntimeConfig
from workbench.schema.envelopes import Envelope, load_envelope
from workbench.units import GB


@dataclass(frozen=True, kw_only=True)
class Bandwidth:
    """Bytes per second, and the source of the figure."""

    bytes_per_s: float
    source: str


def known_bandwidth(given_gbps: float | None, profile: str, config: RuntimeConfig, probe_s: float) -> Bandwidth:
    """Bandwidth of record reads: the given figure, else the emulated disk's, else from this disk's envelope, else from a probe.

    The envelope is Gate A's newest for this machine, filesystem and profile; only uncached runs use it. The probe reads the
    profile's store for `probe_s` seconds with the run's read settings.
    """
    if given_gbps is not None:
        return Bandwidth(bytes_per_s=given_gbps * GB, source=f"given: {given_gbps:g} GB/s")
    if config.envelope:
        return _modelled(load_envelope(config.envelope), Geometry.from_folder(store_folder(profile)).record_bytes)
    envelope = latest_envelope(runs_folder(), profile) if config.uncached else None
    if envelope is not None and envelope.measured is not None:
        gbps = envelope.measured.expert.bandwidth_gbps
        return Bandwidth(bytes_per_s=gbps * GB, source=f"{envelope.source}: {gbps:.3g} GB/s of records")
    bytes_per_s = probe_bandwidth(store_folder(profile), config, probe_s)
    how = "uncached" if config.uncached else "buffered: the page cache may serve it"
    source = f"probe: {bytes_per_s / GB:.3g} GB/s, {probe_s:g} s of record windows, {config.expert_depth} at once, {how}"
    return Bandwidth(bytes_per_s=bytes_per_s, source=source)


def _modelled(envelope: Envelope, record_bytes: int) -> Bandwidth:
    """Bandwidth of record reads on the emulated disk."""
    gbps = min(envelope.bandwidth_gbps, envelope.iops * record_bytes / GB)
    return Bandwidth(bytes_per_s=gbps * GB, source=f"envelope {envelope.name} (emulated): {gbps:.3g} GB/s of records")


def probe_bandwidth(store: Path, config: RuntimeConfig, probe_s: float) -> float:
    """Bytes per second of random record windows with `expert_depth` reads in flight for `probe_s` seconds."""
    path, windows = record_windows(store)
    return read_rate(path, windows, depth=config.expert_depth, uncached=config.uncached, probe_s=probe_s).bytes_per_s
