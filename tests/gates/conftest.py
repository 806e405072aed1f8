"""Planted series: cohorts A1 B1 B2 A2 whose arms have events and were never run."""

import pytest

from workbench.abba.records import ORDER, ArmRecord, CohortRecord, Series, WatchRecord
from workbench.gates.shared.config import ComparisonConfig
from workbench.schema import Evidence, RunFolder
from workbench.schema.results import write_json

MS = 1_000_000
CONFIG = ComparisonConfig()
WATCH = WatchRecord(wall_s=1, num_samples=2, longest_gap_s=1, swap_out_bytes=0, memory_pressure=0, other_cores=0, stolen_cores=0)


def plant_arm(series, folder, name, token_ms, wait_ms):
    """A run of three tokens, each of which waits for records; times are given as (of arms A, of arms B)."""
    side = "AB".index(name[-1])
    home = RunFolder.create(series.path / folder / name, "generate", CONFIG, profile="mini", evidence=Evidence.EMULATED)
    for number in range(3):
        end_ns, wait_ns = number * token_ms[side] * MS, wait_ms[side] * MS
        home.events.add(end_ns, "token", phase="decode", duration_ns=MS, committed_tokens=1)
        home.events.add(end_ns - wait_ns, "wait", store="expert", phase="decode", duration_ns=wait_ns)
    home.finish()
    place = str(home.path.relative_to(series.path))
    return ArmRecord(name=name, exit_code=0, started_ns=0, duration_s=1, watch=WATCH, folder=place)


@pytest.fixture(scope="session")
def plant_series():
    """Makes a finished series; by default a token takes 10 ms in arms A and 8 ms in arms B, and none waits."""

    def plant(root, *, num_cohorts=1, token_ms=(10, 8), wait_ms=(0, 0), spoiled=()):
        series = RunFolder.create(root, "abba", CONFIG, profile="mini", evidence=Evidence.EMULATED)
        cohorts = []
        for number in range(1, num_cohorts + 1):
            arms = [plant_arm(series, f"arms/c{number:02d}", name, token_ms, wait_ms) for name in ORDER]
            cohorts.append(CohortRecord(number=number, arms=tuple(arms), reasons=tuple(spoiled)))
        write_json(series.artifacts / "cohorts.json", Series(cohorts=tuple(cohorts)).model_dump(mode="json"))
        series.finish()
        return series

    return plant
