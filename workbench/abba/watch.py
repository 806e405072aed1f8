"""The watchdog: a thread of the parent that reads CPU time, swap and memory of the machine once a second during an arm."""

import os
import resource
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import psutil

from workbench.abba.power import PowerState, power_state
from workbench.abba.records import WatchRecord
from workbench.hardware import memory_pressure, swap_out_bytes
from workbench.units import NS_PER_S

INTERVAL_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One reading of the machine; CPU times are seconds since boot, comparable between readings."""

    t_ns: int
    swap_out_bytes: int
    memory_pressure: float
    busy_s: float
    """CPU time of all processes and the kernel."""
    stolen_s: float
    own_s: float
    """CPU time of this process and of its children that have ended."""
    processes: dict[int, tuple[str, float]] = field(default_factory=dict)
    """Name and CPU time by process id, without this process and the arm's."""


Meter = Callable[[int | None], Reading]
"""Function that takes a reading; its argument is the session of the arm, whose processes are left out."""


def read_machine(session: int | None) -> Reading:
    """A reading of this machine."""
    times = psutil.cpu_times()
    return Reading(
        t_ns=time.monotonic_ns(),
        swap_out_bytes=swap_out_bytes(),
        memory_pressure=memory_pressure(),
        busy_s=times.user + times.system + getattr(times, "nice", 0.0),
        stolen_s=getattr(times, "steal", 0.0),
        own_s=_own_s(),
        processes=_others(session),
    )


def _own_s() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _others(session: int | None) -> dict[int, tuple[str, float]]:
    found = {}
    for process in psutil.process_iter(["name", "cpu_times"]):
        times = process.info["cpu_times"]
        if times is not None and not _ours(process.pid, session):
            found[process.pid] = (process.info["name"], times.user + times.system)
    return found


def _ours(pid: int, session: int | None) -> bool:
    if pid == os.getpid():
        return True
    try:
        return session is not None and os.getsid(pid) == session
    except OSError:
        return False


class Watch:
    """A watchdog that takes readings between `start` and `stop`; its thread never touches the arm."""

    def __init__(self, meter: Meter = read_machine, power: Callable[[], PowerState] = power_state) -> None:
        self._meter, self._power = meter, power
        self._readings: list[Reading] = []
        self._session: int | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def start(self) -> None:
        """Takes the first reading and starts the thread."""
        self._power_before = self._power()
        self._readings.append(self._meter(None))
        self._thread.start()

    def follow(self, session: int) -> None:
        """Sets the session of the arm's processes."""
        self._session = session

    def stop(self) -> WatchRecord:
        """Ends the thread, takes the last reading (the arm must have ended) and returns the summary."""
        self._stop.set()
        self._thread.join()
        self._readings.append(self._meter(self._session))
        return summarise(self._readings, self._power_before, self._power())

    @property
    def readings(self) -> list[dict[str, float]]:
        """Raw readings as rows, for the record."""
        columns = ("t_ns", "swap_out_bytes", "memory_pressure", "busy_s", "stolen_s", "own_s")
        return [{name: getattr(reading, name) for name in columns} for reading in self._readings]

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            self._readings.append(self._meter(self._session))


def summarise(readings: Sequence[Reading], before: PowerState, after: PowerState) -> WatchRecord:
    """The record of at least two readings in time order."""
    first, last = readings[0], readings[-1]
    wall_s = (last.t_ns - first.t_ns) / NS_PER_S
    gaps = [(b.t_ns - a.t_ns) / NS_PER_S for a, b in pairwise(readings)]
    others_s = (last.busy_s - first.busy_s) - (last.own_s - first.own_s)
    return WatchRecord(
        wall_s=wall_s,
        num_samples=len(readings),
        longest_gap_s=max(gaps),
        swap_out_bytes=last.swap_out_bytes - first.swap_out_bytes,
        memory_pressure=max(reading.memory_pressure for reading in readings),
        other_cores=max(others_s, 0.0) / wall_s,
        stolen_cores=(last.stolen_s - first.stolen_s) / wall_s,
        busiest=_busiest(readings, wall_s),
        power_before=before,
        power_after=after,
    )


def _busiest(readings: Sequence[Reading], wall_s: float) -> str:
    used: dict[int, float] = {}
    names: dict[int, str] = {}
    for earlier, later in pairwise(readings):
        for pid, (name, seconds) in later.processes.items():
            names[pid] = name
            used[pid] = used.get(pid, 0.0) + seconds - earlier.processes.get(pid, (name, 0.0))[1]
    if not used:
        return ""
    pid = max(used, key=lambda other: used[other])
    return f"{names[pid]} (process {pid}), {used[pid] / wall_s:.2f} cores"
