from types import SimpleNamespace

import pytest

from workbench.experiments import disk_rates
from workbench.experiments.bandwidth import Bandwidth
from workbench.experiments.disk_rates import extent_windows, known_rates
from workbench.runtime.config import RuntimeConfig
from workbench.stores import open_store
from workbench.units import MIB, PAGE_BYTES

RECORDS = Bandwidth(bytes_per_s=1e9, source="elsewhere")


@pytest.fixture
def probed(mini_store, monkeypatch):
    """A disk without an envelope whose extents come at the rate in this list."""
    rates = [2e9]
    monkeypatch.setattr(disk_rates, "latest_envelope", lambda root, profile: None)
    monkeypatch.setattr(disk_rates, "read_rate", lambda *_, **__: SimpleNamespace(bytes_per_s=rates[0]))
    return rates


def test_extents_are_probed_where_no_envelope_is_known(probed):
    found = known_rates("mini", RuntimeConfig(), RECORDS, 0.5)
    assert (found.sparse_bytes_per_s, found.sequential_bytes_per_s) == (1e9, 2e9)
    assert found.source == "records: elsewhere; extents: probe: 2 GB/s, 0.5 s, 4 at once"


def test_extents_are_never_taken_to_be_slower_than_records(probed):
    probed[0] = 0.7e9
    assert known_rates("mini", RuntimeConfig(), RECORDS, 0.5).sequential_bytes_per_s == 1e9


def test_the_disk_that_a_run_is_slowed_to_comes_first(probed):
    found = known_rates("mini", RuntimeConfig(envelope="m4-pro-512gb"), RECORDS, 0.5)
    assert found.source.startswith("records: elsewhere; extents: m4-pro-512gb: ")


def test_an_envelope_of_this_disk_holds_for_uncached_reads(probed, monkeypatch):
    monkeypatch.setattr(disk_rates, "latest_envelope", lambda *_: SimpleNamespace(name="x", bandwidth_gbps=3.0))
    assert known_rates("mini", RuntimeConfig(), RECORDS, 0.5).sequential_bytes_per_s == 3e9
    assert known_rates("mini", RuntimeConfig(uncached=False), RECORDS, 0.5).sequential_bytes_per_s == 2e9


def test_extents_cover_every_layer_in_whole_pages(mini_store, monkeypatch):
    monkeypatch.setattr(disk_rates, "_EXTENT_BYTES", MIB)
    _, windows = extent_windows(mini_store)
    layers = open_store(mini_store).experts.layers
    assert sum(window.need_bytes for window in windows) == len(layers) * 128 * 27_648
    assert all(window.offset % PAGE_BYTES == window.num_bytes % PAGE_BYTES == 0 for window in windows)
    assert max(window.num_bytes for window in windows) == MIB
