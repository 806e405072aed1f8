"""What the watchdog sums up, and that it sees this machine."""

import subprocess
import sys
import time

import pytest

from workbench.abba.power import PowerState
from workbench.abba.watch import Reading, Watch, read_machine, summarise

ZERO = {"swap_out_bytes": 0, "memory_pressure": 0.2, "busy_s": 0.0, "stolen_s": 0.0, "own_s": 0.0}


def reading(second, **values):
    return Reading(t_ns=second * 1_000_000_000, **ZERO | values)


def test_a_summary_is_the_difference_of_its_readings():
    readings = [
        reading(10, processes={7: ("cc1plus", 5.0)}),
        reading(11, memory_pressure=0.6, processes={7: ("cc1plus", 5.5), 8: ("ld", 0.25)}),
        reading(14, swap_out_bytes=8192, busy_s=4.0, own_s=2.0, stolen_s=0.4, processes={8: ("ld", 1.0)}),
    ]
    record = summarise(readings, PowerState(), PowerState())
    assert (record.wall_s, record.num_samples, record.longest_gap_s) == (4.0, 3, 3.0)
    assert (record.swap_out_bytes, record.memory_pressure) == (8192, 0.6)
    assert (record.other_cores, record.stolen_cores) == (0.5, 0.1)
    assert record.busiest == "ld (process 8), 0.25 cores"


def test_our_own_time_is_not_a_competitor():
    record = summarise([reading(0), reading(1, busy_s=1.0, own_s=1.1)], PowerState(), PowerState())
    assert record.other_cores == 0


def test_a_watch_reads_the_machine():
    watch = Watch(read_machine, PowerState)
    watch.start()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    watch.follow(child.pid)
    try:
        assert child.pid not in read_machine(child.pid).processes
        assert child.pid in read_machine(None).processes
    finally:
        child.communicate(b"\n")
    time.sleep(0.05)
    record = watch.stop()
    assert record.num_samples == len(watch.readings) >= 2
    assert record.wall_s > 0
    assert record.memory_pressure == pytest.approx(watch.readings[-1]["memory_pressure"], abs=0.2)
