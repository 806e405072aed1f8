import json
from pathlib import Path

import pytest

from workbench.errors import BadInput
from workbench.readers import Disk
from workbench.schema.envelopes import Envelope

FOLDER = Path(__file__).parents[2] / "data/envelopes"
RECORD_BYTES = 2_764_800


def envelope(**changes):
    plain = {
        "name": "plain",
        "device": "d",
        "source": "s",
        "latency_us": 100,
        "stream_gbps": 1,
        "bandwidth_gbps": 2,
        "iops": 10_000,
    }
    return Envelope.build(plain | changes)


def rate(disk, num_bytes, depth, count=400):
    """Reads a second with `depth` reads in flight."""
    ready = [disk.ready_ns(0, num_bytes) for _ in range(depth)]
    for _ in range(count):
        ready.sort()
        ready.append(disk.ready_ns(ready.pop(0), num_bytes))
    return (count + depth) / max(ready) * 1e9


def test_one_read_alone_has_its_latency_and_its_transfer():
    assert Disk(envelope()).ready_ns(1000, 100_000) == 1000 + 100_000 + 100_000


def test_reads_together_share_the_bandwidth():
    assert rate(Disk(envelope()), 1_000_000, 16) == pytest.approx(2000, rel=0.02)


def test_small_reads_together_are_bounded_in_number():
    assert rate(Disk(envelope()), 512, 32) == pytest.approx(10_000, rel=0.02)


def test_an_idle_disk_owes_nothing():
    disk = Disk(envelope())
    disk.ready_ns(0, 1_000_000)
    assert disk.ready_ns(10**9, 100_000) == 10**9 + 200_000


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_bundled_envelopes_are_whole(path):
    some = Envelope.from_json(path)
    assert some.name == path.stem
    assert set(some.assumed) <= set(Envelope.model_fields)
    assert some.source
    assert some.notes or not some.assumed
    assert some.stream_gbps <= some.bandwidth_gbps


def test_there_are_at_least_three_bundled_envelopes():
    assert len(list(FOLDER.glob("*.json"))) >= 3


@pytest.mark.parametrize(
    ("num_bytes", "depth", "gbps"), [(RECORD_BYTES, 1, 9.46), (RECORD_BYTES, 8, 17.25), (4096, 1, 0.08), (4096, 32, 1.11)]
)
def test_the_m5_model_gives_back_the_figures_it_was_made_from(num_bytes, depth, gbps):
    disk = Disk(Envelope.from_json(FOLDER / "m5-pro-2tb.json"))
    assert rate(disk, num_bytes, depth) * num_bytes / 1e9 == pytest.approx(gbps, rel=0.02)


@pytest.mark.parametrize("content", ["{", "{}", json.dumps({"iops": -1})])
def test_a_bad_envelope_is_refused(tmp_path, content):
    path = tmp_path / "bad.json"
    path.write_text(content)
    with pytest.raises(BadInput):
        Envelope.from_json(path)
    with pytest.raises(BadInput, match="no such file"):
        Envelope.from_json(tmp_path / "nothing.json")
