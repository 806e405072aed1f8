"""The twin's estimate of a machine obeys its two bounds, and the table says what it is beside."""

import numpy as np
import pytest

from workbench.simulate.machines import NUM_TOKENS, Assumed, beside_reports, twin_tps
from workbench.simulate.planner import Machine
from workbench.simulate.planted import loop

MIDDLE = Assumed(at=0.5, wave="barrier")
SHORT = NUM_TOKENS - 180


def machine(**changed):
    values = {"name": "toy", "device": "none", "budget_gb": 12, "ssd_gbps": (4.0, 9.0), "compute_ms": (20.0, 45.0)}
    return Machine(**values | {"num_slots": 1000, "reported_tps": (8.0, 10.0)} | changed)


@pytest.fixture(scope="module")
def keys():
    """Ten records a layer, in a cycle of 20 tokens: 9,600 records, of which 1,000 slots under LRU hit none."""
    routes = loop(num_requests=1, num_tokens=SHORT, num_layers=48, num_experts=512, top_k=10, period=20)[0]
    return routes.astype(np.int64) + np.arange(48)[:, None] * 512


def test_reads_that_nothing_hides_add_to_compute(keys):
    # the middle of 4 to 9 GB/s is 6, of 20 to 45 ms 30; a token reads all its 480 records of 2.7648 MB (and a page at most)
    read_ms = 480 * 2.7648 / 6
    # a tenth of compute is the shared expert, which runs while records come
    expected_ms = 30 + read_ms - 3
    assert 1000 / twin_tps(machine(), MIDDLE, keys) == pytest.approx(expected_ms, rel=0.01)


def test_a_cache_that_holds_all_leaves_compute(keys):
    assert 1000 / twin_tps(machine(num_slots=9600), MIDDLE, keys) == pytest.approx(30, rel=0.001)


def test_drafts_commit_more_than_they_cost(keys):
    # 1 draft: a pass costs 1.16, commits the middle of 1.6 and 1.86
    # few passes are counted here: one token more or fewer shows
    expected_ms = 30 * 1.16 / (1.6 * 1.86) ** 0.5
    assert 1000 / twin_tps(machine(num_slots=9600, mtp_depth=1), MIDDLE, keys) == pytest.approx(expected_ms, rel=0.08)


def test_a_row_says_how_far_the_estimate_is(keys):
    row = beside_reports(machine(num_slots=9600, reported_tps=(20.0, 45.0)), keys[: NUM_TOKENS - 190])
    assert row["reported_tps"] == pytest.approx(30.0)
    assert row["error_percent"] == pytest.approx(100 * (row["twin_tps"] / 30.0 - 1))
    assert row["twin_low_tps"] < row["twin_tps"] < row["twin_high_tps"]
    assert row["covered"]
    with pytest.raises(ValueError, match="nothing was reported of toy"):
        beside_reports(machine(reported_tps=None), keys)
