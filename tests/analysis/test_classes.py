"""Reads by the class that they were planned in, and by the predictor that planned them."""

import pytest

from workbench.analysis.classes import class_metrics, class_table, predictor_table
from workbench.analysis.run_metrics import run_metrics
from workbench.schema import METRICS, EventLog

ON_TIME, LATE, UNUSED = "used_on_time", "used_late", "unused"


def planted():
    """P0: late, on time. P1: one promoted and late, one unused. P2: on time, of pages. A failed read counts nowhere."""
    log = EventLog()
    read(log, "expert", 0, LATE, 100)
    read(log, "expert", 0, ON_TIME, 300)
    read(log, "expert", 1, LATE, 100, ended=0, predictor="previous_token", confidence=0.5)
    read(log, "expert", 1, UNUSED, 300, predictor="previous_token", confidence=0.25)
    read(log, "expert", 1, "failed", 700, predictor="previous_token", confidence=1.0)
    read(log, "ple", 2, ON_TIME, 40, ended=1, predictor="drafter", confidence=0.75)
    read(log, "ple", 3, UNUSED, 50, predictor="hot_set", confidence=1.0)
    read(log, "expert", 0, LATE, 900, phase="attribution")
    return log


def read(log, store, priority, outcome, num_bytes, *, ended=None, phase="decode", **columns):
    classes = {"priority": priority, "ended_priority": priority if ended is None else ended}
    moved = {"submit_ns": 1, "ready_ns": 2, "logical_bytes": num_bytes, "physical_bytes": num_bytes}
    log.add(1, "ticket", store=store, phase=phase, outcome=outcome, **moved, **classes, **columns)


def test_bytes_usefulness_and_lateness_count_in_the_class_that_asked():
    found = class_metrics(planted().frame())
    assert found == pytest.approx(
        {
            "storage/expert_p0_bytes": 400,
            "storage/expert_p0_useful_ratio": 1,
            "storage/expert_p0_late_fraction": 0.5,
            "storage/expert_p1_bytes": 400,
            "storage/expert_p1_useful_ratio": 0.25,
            "storage/expert_p1_late_fraction": 1,
            "storage/ple_p2_bytes": 40,
            "storage/ple_p2_useful_ratio": 1,
            "storage/ple_p2_late_fraction": 0,
            "storage/ple_p3_bytes": 50,
            "storage/ple_p3_useful_ratio": 0,
        }
    )
    assert found.keys() <= METRICS.keys()
    assert found.items() <= run_metrics(planted().frame()).items()


def test_a_table_shows_the_classes_for_people():
    rows = class_table(planted().frame())
    assert [(row["store"], row["class"], row["reads"], row["bytes"], row["ended_more_urgent"]) for row in rows] == [
        ("expert", "P0", 2, 400, 0), ("expert", "P1", 2, 400, 1), ("ple", "P2", 1, 40, 1), ("ple", "P3", 1, 50, 0),
    ]  # fmt: skip
    assert [(row["used_bytes_share"], row["late_share"]) for row in rows] == [(1.0, 0.5), (0.25, 1.0), (1.0, 0.0), (0.0, None)]


def test_predictors_have_their_reads_use_and_confidence():
    assert predictor_table(planted().frame()) == [
        {"predictor": "drafter", "reads": 1, "used_share": 1.0, "mean_confidence": 0.75},
        {"predictor": "hot_set", "reads": 1, "used_share": 0.0, "mean_confidence": 1.0},
        {"predictor": "previous_token", "reads": 2, "used_share": 0.5, "mean_confidence": 0.375},
    ]


def test_reads_of_version_1_have_no_class():
    log = EventLog()
    log.add(1, "ticket", store="expert", outcome=LATE, logical_bytes=100)
    assert class_metrics(log.frame()) == {}
    assert class_table(log.frame()) == predictor_table(log.frame()) == []


def test_pages_read_for_rejected_tokens_are_counted():
    log = EventLog()
    log.add(1, "demand", store="ple", phase="verify", hits=0, joined=0, misses=3, value=4.0, logical_bytes=12288)
    for store, num_bytes in (("ple", 8192), ("ple", 4096), ("expert", 999)):
        log.add(2, "rejected", store=store, phase="verify", position=7, value=2.0, logical_bytes=num_bytes)
    metrics = run_metrics(log.frame())
    assert metrics["ple/rejected_suffix_bytes"] == 12288
    assert "ple/rejected_suffix_bytes" not in run_metrics(log.frame().filter(kind="demand"))
