import pytest

from workbench.errors import BadInput
from workbench.schema.envelopes import load_envelope, slowed_name


@pytest.mark.parametrize("times", [0.5, 1, 2.5, 100, 1234.56])
def test_a_slowed_disk_is_known_by_its_name(times):
    plain, slow = load_envelope("m5-pro-2tb"), load_envelope(slowed_name("m5-pro-2tb", times))
    assert slow == plain.slowed(times)
    assert slow.bandwidth_gbps == plain.bandwidth_gbps / times
    assert (slow.latency_us, slow.iops) == (plain.latency_us, plain.iops)
    assert slow.name == slowed_name("m5-pro-2tb", times)


SLOWED = [f"m5-pro-2tb-slowed-{times}" for times in ("", "0", "0.0", "nan", "1e3", "-1", 400 * "9")]


@pytest.mark.parametrize("name", [*SLOWED, "disk-slowed-2", "../m5"])
def test_any_other_name_is_refused_with_those_that_there_are(name):
    with pytest.raises(BadInput, match=r"bundled are .*m5-pro-2tb"):
        load_envelope(name)


def test_a_path_needs_a_file_that_is_an_envelope(tmp_path):
    with pytest.raises(BadInput, match="no such file"):
        load_envelope(str(tmp_path / "none.json"))
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(BadInput, match="is not JSON"):
        load_envelope(str(tmp_path / "bad.json"))
