"""Power and thermal state of the machine, from pmset on macOS and /sys on Linux; `unknown` where the system reports none."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Literal

from workbench.config import Config

_SYS = Path("/sys")
_PMSET_TIMEOUT_S = 5.0


class PowerState(Config):
    """One reading of the machine's power and thermal state."""

    source: Literal["mains", "battery", "unknown"] = "unknown"
    """Power source."""
    mode: str = "unknown"
    """Low-power mode (macOS) or frequency governor (Linux)."""
    thermal: Literal["nominal", "throttled", "unknown"] = "unknown"
    """Whether the machine reports that heat slows it."""
    throttle_count: int | None = None
    """Throttling events of all cores since boot, as counted by Linux."""

    def differences(self, later: "PowerState") -> list[str]:
        """Changes of power source and mode between this reading and `later`, in words."""
        fields = (("power source", self.source, later.source), ("power mode", self.mode, later.mode))
        return [f"{name} went from {before} to {after}" for name, before, after in fields if before != after]

    def heat(self, later: "PowerState") -> str | None:
        """How heat disturbed a run between this reading and `later`, in words, or None."""
        if "throttled" in (self.thermal, later.thermal):
            return "the machine was throttled by heat"
        if self.throttle_count is not None and later.throttle_count is not None and later.throttle_count > self.throttle_count:
            return f"{later.throttle_count - self.throttle_count} more throttled cores were counted"
        return None

    @property
    def unknown(self) -> list[str]:
        """Names of the fields that this machine does not report."""
        words = {"source": "power source", "mode": "power mode", "thermal": "thermal state"}
        return [word for name, word in words.items() if getattr(self, name) == "unknown"]


def power_state() -> PowerState:
    """The machine's present state."""
    return _macos_state() if sys.platform == "darwin" else linux_state(_SYS)


def linux_state(root: Path) -> PowerState:
    """The state from a `/sys` tree: mains adapters, governor of the first core, throttle counters."""
    supplies = [path for path in root.glob("class/power_supply/*") if _text(path / "type") in ("Mains", "USB")]
    online = [_text(path / "online") for path in supplies]
    counts = [_text(path) for path in root.glob("devices/system/cpu/cpu*/thermal_throttle/*_throttle_count")]
    numbers = [int(count) for count in counts if count.isdigit()]
    return PowerState(
        source=("mains" if "1" in online else "battery") if online else "unknown",
        mode=_text(root / "devices/system/cpu/cpu0/cpufreq/scaling_governor") or "unknown",
        thermal="nominal" if numbers else "unknown",
        throttle_count=sum(numbers) if numbers else None,
    )


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _macos_state() -> PowerState:
    return parse_pmset(_pmset("batt"), _pmset("therm"), _pmset())


def _pmset(*what: str) -> str:
    try:
        return subprocess.run(["pmset", "-g", *what], capture_output=True, text=True, check=True, timeout=_PMSET_TIMEOUT_S).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def parse_pmset(battery: str, thermal: str, settings: str) -> PowerState:
    """The state from the output of `pmset -g batt`, `pmset -g therm` and `pmset -g`; `powermetrics` would need root."""
    source = re.search(r"drawing from '(AC|Battery)", battery)
    names: dict[str, Literal["mains", "battery"]] = {"AC": "mains", "Battery": "battery"}
    limits = [int(limit) for limit in re.findall(r"CPU_Speed_Limit\s*=\s*(\d+)", thermal)]
    low_power = re.search(r"lowpowermode\s+(\d)", settings)
    nominal = bool(limits) or "No thermal warning level" in thermal
    return PowerState(
        source=names[source.group(1)] if source else "unknown",
        mode={"0": "normal", "1": "low power"}.get(low_power.group(1), "unknown") if low_power else "unknown",
        thermal=("throttled" if min(limits, default=100) < 100 else "nominal") if nominal else "unknown",
    )
