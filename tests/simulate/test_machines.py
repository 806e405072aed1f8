"""The twin's estimate of a machine obeys its two bounds, and the table says what it is beside."""

import numpy as np
import pytest

from workbench.simulate.machines import Assumed, beside_reports, twin_tps
from workbench.simulate.planner import PlannedMachine
from workbench.simulate.planted import loop

MIDDLE = Assumed(at=0.5, wave="barrier")
READ_MS = 480 * 2.7648 / 6
"""A token that reads all its records at the middle of 4 to 9 GB/s."""


def machine(**changed):
    values = {"name": "toy", "device": "none", "budget_gb": 12, "ssd_gbps": (4.0, 9.0), "compute_ms": (20.0, 45.0)}
    return PlannedMachine(**values | {"num_slots": 1000, "reported_tps": (8.0, 10.0)} | changed)


@pytest.fixture(scope="module")
def keys():
    """Ten records a layer, in a cycle of 5 tokens: 2,400 records, of which 1,000 slots under LRU hit none."""
    routes = loop(num_requests=1, num_tokens=25, num_layers=48, num_experts=512, top_k=10, period=5)[0]
    return routes.astype(np.int64) + np.arange(48)[:, None] * 512


def test_reads_that_nothing_hides_add_to_compute(keys):
    # the middle of 20 to 45 ms is 30; a tenth of it is the shared expert, which runs while records come
    assert 1000 / twin_tps(machine(), MIDDLE, keys) == pytest.approx(30 - 3 + READ_MS, rel=0.01)


def test_a_cache_that_holds_all_reads_each_record_once(keys):
    expected_ms = (5 * (30 - 3 + READ_MS) + 20 * 30) / 25
    assert 1000 / twin_tps(machine(num_slots=2400), MIDDLE, keys) == pytest.approx(expected_ms, rel=0.01)


def test_a_draft_costs_part_of_a_pass_and_commits_tokens(keys):
    # a disk that is no limit: 1 draft costs .16 of a pass, which commits the middle of 1.6 and 1.86
    drafting = machine(mtp_depth=1, ssd_gbps=(1e6, 1e6))
    expected_ms = 30 * 1.16 / (1.6 * 1.86) ** 0.5
    assert 1000 / twin_tps(drafting, MIDDLE, keys) == pytest.approx(expected_ms, rel=0.15)


def test_a_row_says_how_far_the_estimate_is(keys):
    row = beside_reports(machine(num_slots=2400, reported_tps=(4.0, 25.0)), keys)
    assert row["reported_tps"] == pytest.approx(10.0)
    assert row["error_percent"] == pytest.approx(100 * (row["twin_tps"] / 10.0 - 1))
    assert row["twin_low_tps"] < row["twin_tps"] < row["twin_high_tps"]
    assert row["covered"]
    with pytest.raises(ValueError, match="toy has no reported tokens"):
        beside_reports(machine(reported_tps=None), keys)
