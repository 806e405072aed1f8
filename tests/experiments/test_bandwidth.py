from types import SimpleNamespace

import pytest

from workbench.experiments import bandwidth
from workbench.experiments.bandwidth import known_bandwidth
from workbench.runtime.config import RuntimeConfig


@pytest.fixture
def disk(monkeypatch):
    """A disk whose probe gives 1 GB/s and whose envelope says 2, once it is set."""
    known = {}
    monkeypatch.setattr(bandwidth, "probe_bandwidth", lambda *_: 1e9)
    monkeypatch.setattr(bandwidth, "latest_envelope", lambda root, profile: known.get(profile))
    return known


def test_what_is_given_wins_over_the_envelope_and_that_over_a_probe(disk):
    assert known_bandwidth(None, "mini", RuntimeConfig(), 0.5).source.startswith("probe: 1 GB/s, 0.5 s")
    measured = SimpleNamespace(expert=SimpleNamespace(bandwidth_gbps=2.0))
    disk["mini"] = SimpleNamespace(source="Gate A, run x", measured=measured)
    found = known_bandwidth(None, "mini", RuntimeConfig(), 0.5)
    assert (found.bytes_per_s, found.source) == (2e9, "Gate A, run x: 2 GB/s of records")
    assert known_bandwidth(3.0, "mini", RuntimeConfig(), 0.5).bytes_per_s == 3e9
    assert known_bandwidth(None, "slice", RuntimeConfig(), 0.5).bytes_per_s == 1e9


def test_an_envelope_says_nothing_about_reads_that_the_page_cache_may_serve(disk):
    disk["mini"] = SimpleNamespace(source="x", measured=SimpleNamespace(expert=SimpleNamespace(bandwidth_gbps=2.0)))
    found = known_bandwidth(None, "mini", RuntimeConfig(uncached=False), 0.5)
    assert found.bytes_per_s == 1e9
    assert "buffered" in found.source


def test_a_run_that_is_slowed_down_is_bound_by_the_modelled_disk(disk, tmp_path, monkeypatch):
    monkeypatch.setattr(bandwidth, "store_folder", lambda profile: tmp_path)
    monkeypatch.setattr(bandwidth.Geometry, "from_folder", lambda folder: SimpleNamespace(record_bytes=10_000))
    found = known_bandwidth(None, "mini", RuntimeConfig(envelope="usb-10gbps"), 0.5)
    assert found.bytes_per_s == 40_000 * 10_000, "so many reads a second, however small"
    assert "emulated" in found.source
