"""Power and thermal state from what macOS and Linux print."""

import pytest

from workbench.abba.power import PowerState, linux_state, parse_pmset, power_state

BATTERY = "Now drawing from 'Battery Power'\n -InternalBattery-0 (id=1234)\t81%; discharging; 3:12 remaining present: true\n"
MAINS = "Now drawing from 'AC Power'\n -InternalBattery-0 (id=1234)\t100%; charged; 0:00 remaining present: true\n"
COOL = "Note: No thermal warning level has been recorded\nNote: No performance warning level has been recorded\n"
HOT = "CPU_Scheduler_Limit \t= 100\nCPU_Available_CPUs \t= 8\nCPU_Speed_Limit \t= 63\n"


def test_pmset():
    assert parse_pmset(MAINS, COOL, " lowpowermode         0\n") == PowerState(source="mains", mode="normal", thermal="nominal")
    assert parse_pmset(BATTERY, HOT, " lowpowermode         1\n") == PowerState(
        source="battery", mode="low power", thermal="throttled"
    )
    assert parse_pmset("", "", "") == PowerState()


def test_linux(tmp_path):
    assert linux_state(tmp_path) == PowerState()
    write(tmp_path / "class/power_supply/AC/type", "Mains")
    write(tmp_path / "class/power_supply/AC/online", "1")
    write(tmp_path / "devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance")
    write(tmp_path / "devices/system/cpu/cpu0/thermal_throttle/core_throttle_count", "2")
    write(tmp_path / "devices/system/cpu/cpu1/thermal_throttle/core_throttle_count", "3")
    assert linux_state(tmp_path) == PowerState(source="mains", mode="performance", thermal="nominal", throttle_count=5)
    write(tmp_path / "class/power_supply/AC/online", "0")
    assert linux_state(tmp_path).source == "battery"


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def test_changes_are_named():
    before = PowerState(source="mains", mode="normal", thermal="nominal", throttle_count=1)
    assert before.differences(before) == []
    assert before.heat(before) is None
    assert before.differences(before.model_copy(update={"source": "battery"})) == ["power source went from mains to battery"]
    assert "throttled" in before.heat(before.model_copy(update={"throttle_count": 2}))
    assert "heat" in before.heat(before.model_copy(update={"thermal": "throttled"}))
    assert PowerState().unknown == ["power source", "power mode", "thermal state"]


@pytest.mark.apple("pmset tells power source, power mode and thermal state without root")
def test_a_mac_tells_its_state():
    assert power_state().unknown == []
