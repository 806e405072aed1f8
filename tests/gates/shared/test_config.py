import pytest

from workbench.gates.shared.config import ComparisonConfig
from workbench.gates.traces import profile_geometry
from workbench.geometry import FLASH_NEXT
from workbench.paths import data_folder
from workbench.readers import Disk
from workbench.schema.envelopes import load_envelope


def test_mini_is_shown_on_every_bundled_disk_in_proportion_and_other_profiles_on_their_own():
    bundled = {path.stem for path in (data_folder() / "envelopes").glob("*.json")}
    assert set(ComparisonConfig().disks) == {f"{name}-slowed-100" for name in bundled}
    for name in bundled:
        slow, true = Disk(load_envelope(f"{name}-slowed-100")), Disk(load_envelope(name))
        mini = profile_geometry("mini").record_bytes
        assert slow.ready_ns(0, mini) == pytest.approx(true.ready_ns(0, FLASH_NEXT.record_bytes))
    assert len(ComparisonConfig(smoke=True).disks) == 1
    assert ComparisonConfig(profile="slice").disks == ("",)
    assert not ComparisonConfig(profile="slice").is_emulated
