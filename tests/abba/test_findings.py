"""Detectors on a comparison hold B against the A arm beside it."""

import pytest

from workbench.abba.findings import comparison_findings
from workbench.abba.records import ORDER, ArmRecord, Code, CohortRecord, Reason, WatchRecord
from workbench.config import Config
from workbench.schema import Evidence, RunFolder

WATCH = WatchRecord(wall_s=1, num_samples=2, longest_gap_s=1, swap_out_bytes=0, memory_pressure=0, other_cores=0, stolen_cores=0)


class Plan(Config):
    """Of a run made for a test."""


@pytest.fixture
def series(tmp_path):
    return RunFolder.create(tmp_path, "abba", Plan(), profile="mini", evidence=Evidence.PHYSICAL)


def cohort(series, bytes_b, reasons=()):
    """A cohort whose B arms read `bytes_b` bytes a token, A arms 1,000."""
    arms = []
    for name in ORDER:
        folder = RunFolder.create(series.path / "arms" / name, "planted", Plan(), profile="mini", evidence=Evidence.PHYSICAL)
        for position in range(3):
            where = {"request": 0, "phase": "decode", "position": position}
            size = bytes_b if name[-1] == "B" else 1000
            folder.events.add(position, "ticket", store="expert", outcome="used_late", logical_bytes=size, **where)
            folder.events.add(position, "token", committed_tokens=1, **where)
        folder.finish()
        place = str(folder.path.relative_to(series.path))
        arms.append(ArmRecord(name=name, exit_code=0, started_ns=0, duration_s=1, value=1.0, watch=WATCH, folder=place))
    return CohortRecord(number=3, arms=tuple(arms), reasons=reasons)


def test_more_bytes_than_the_control_are_found_in_both_b_arms(series):
    rows = comparison_findings(series, [cohort(series, 1500)])
    assert [(row["arm"], row["code"]) for row in rows] == [("c03-2B", "more_bytes"), ("c03-3B", "more_bytes")]
    assert "1,500 bytes a token against 1,000 in the control" in rows[0]["statement"]


def test_equal_arms_are_silent_and_invalid_cohorts_are_not_looked_at(series):
    spoiled = (Reason(code=Code.SWAPPED_OUT, where="2B", detail="4,096 bytes"),)
    assert comparison_findings(series, [cohort(series, 9000, spoiled)]) == []
    assert comparison_findings(series, [cohort(series, 1000)]) == []
