"""Every planted disturbance spoils its cohort with its own reason; a clean cohort counts."""

import pytest

from workbench.abba.cache_state import CacheState
from workbench.abba.power import PowerState
from workbench.abba.records import ORDER, AbbaConfig, ArmRecord, Code, WatchRecord
from workbench.abba.validity import codes, judge_cohort, judge_series, reference_of

CONFIG = AbbaConfig(base={"value": 1}, change=("value=2",))
MAINS = PowerState(source="mains", mode="normal", thermal="nominal", throttle_count=0)
WATCH = WatchRecord(
    wall_s=10,
    num_samples=11,
    longest_gap_s=1.0,
    swap_out_bytes=0,
    memory_pressure=0.3,
    other_cores=0.02,
    stolen_cores=0.0,
    busiest="sshd (process 7), 0.01 cores",
    power_before=MAINS,
    power_after=MAINS,
)


def arm(name, **changes):
    values = {
        "name": name,
        "exit_code": 0,
        "started_ns": 1,
        "duration_s": 10.0,
        "value": 10.0,
        "bytes_per_token": 100.0,
        "config_digest": f"config of {name[-1]}",
        "working_set_bytes": 5_000,
        "evidence": "physical",
        "digests": {"output_digest": "o", "state_digest": "s", "routing_digest": "r"},
        "identity": {"sources": "x", "machine": "m"},
        "cached_fraction": 0.5,
        "watch": WATCH,
    }
    return ArmRecord(**values | changes)


def cohort(name="2B", config=CONFIG, **changes):
    return judge_cohort(config, 1, [arm(n, **(changes if n == name else {})) for n in ORDER])


def watched(**changes):
    return {"watch": WATCH.model_copy(update=changes)}


def digests(**changes):
    return {"digests": {"output_digest": "o", "state_digest": "s", "routing_digest": "r"} | changes}


def test_a_clean_cohort_counts():
    assert cohort().valid


@pytest.mark.parametrize(
    ("resident", "valid"),
    [({"checkpoint_sha256": "c"}, True), ({"checkpoint_sha256": "d"}, False), ({}, False),
     ({"checkpoint_sha256": "c", "store_digest": "t"}, False)],
)  # fmt: skip
def test_a_resident_arm_and_a_streamed_one_have_the_same_source(resident, valid):
    streamed = {"identity": {"sources": "x", "store_digest": "s", "checkpoint_sha256": "c"}}
    arms = [arm(n, **({"identity": {"sources": "x"} | resident} if "B" in n else streamed)) for n in ORDER]
    found = judge_cohort(CONFIG, 1, arms)
    assert found.valid == valid
    assert valid or {reason.code for reason in found.reasons} == {Code.SOURCE_DIFFERS}


PLANTED = {
    "output": (Code.OUTPUT_DIFFERS, digests(output_digest="other")),
    "state": (Code.STATE_DIFFERS, digests(state_digest="other")),
    "routing": (Code.ROUTING_DIFFERS, digests(routing_digest="other")),
    "no digest": (Code.DIGEST_MISSING, {"digests": {"output_digest": "o", "state_digest": "s"}}),
    "plan": (Code.PLAN_DIFFERS, {"plan_mismatch": "max_tokens was planned as 8 and ran as 9"}),
    "config": (Code.PLAN_DIFFERS, {"config_digest": "another"}),
    "cache budget": (Code.PLAN_DIFFERS, {"working_set_bytes": 4_999}),
    "emulated": (Code.PLAN_DIFFERS, {"evidence": "emulated"}),
    "sources": (Code.SOURCE_DIFFERS, {"identity": {"sources": "y", "machine": "m"}}),
    "failed": (Code.ARM_FAILED, {"exit_code": 2, "value": None, "error": "no such store"}),
    "killed": (Code.ARM_KILLED, {"exit_code": -9, "value": None}),
    "timed out": (Code.ARM_TIMED_OUT, {"exit_code": -15, "timed_out": True, "value": None}),
    "no metric": (Code.METRIC_MISSING, {"value": None}),
    "swap": (Code.SWAPPED_OUT, watched(swap_out_bytes=4096)),
    "competitor": (Code.COMPETITOR, watched(other_cores=0.8)),
    "stolen": (Code.COMPETITOR, watched(stolen_cores=0.8)),
    "power": (Code.POWER_CHANGED, watched(power_after=MAINS.model_copy(update={"source": "battery"}))),
    "power before": (Code.POWER_CHANGED, watched(power_before=MAINS.model_copy(update={"mode": "low power"}))),
    "heat": (Code.THERMAL_CHANGED, watched(power_after=MAINS.model_copy(update={"throttle_count": 3}))),
    "blind": (Code.WATCH_BLIND, watched(longest_gap_s=9.0)),
}


@pytest.mark.parametrize(("code", "changes"), PLANTED.values(), ids=PLANTED)
@pytest.mark.parametrize("name", ["2B", "4A"])
def test_a_planted_disturbance_spoils_the_cohort_with_its_own_reason(name, code, changes):
    found = cohort(name, **changes)
    assert {reason.code for reason in found.reasons} == {code}
    assert found.reasons[0].where in (name, "cohort")
    assert not found.valid
    assert len(found.arms) == 4


def test_control_drift_rejects():
    found = cohort("4A", value=10.4)
    assert [str(reason) for reason in found.reasons] == ["control_drift (cohort: A1 and A2 differ by 3.9%, the limit is 3%)"]
    assert cohort("4A", value=10.2).valid
    assert cohort("2B", value=20.0).valid


@pytest.mark.parametrize(
    ("state", "fraction", "spoiled"),
    [
        ("cold_process", None, False),
        ("cold_store", 0.0, False),
        ("cold_store", 0.2, True),
        ("cold_store", None, True),
        ("warm_store", 1.0, False),
        ("warm_store", 0.6, True),
        ("hot_cache", 0.0, False),
    ],
)
def test_cache_state_is_the_declared_one(state, fraction, spoiled):
    config = CONFIG.model_copy(update={"cache_state": CacheState(state)})
    found = judge_cohort(config, 1, [arm(name, cached_fraction=fraction) for name in ORDER])
    assert [reason.code for reason in found.reasons] == [Code.CACHE_STATE] * 4 * spoiled


def test_a_change_that_changes_nothing_is_refused_and_a_null_that_differs_too():
    same = judge_cohort(CONFIG, 1, [arm(n, config_digest="one") for n in ORDER])
    assert [reason.code for reason in same.reasons] == [Code.PLAN_DIFFERS]
    null = CONFIG.model_copy(update={"change": ()})
    assert judge_cohort(null, 1, [arm(n, config_digest="one") for n in ORDER]).valid
    assert not judge_cohort(null, 1, [arm(n) for n in ORDER]).valid


def test_later_cohorts_are_held_to_the_first():
    first = judge_cohort(CONFIG, 1, [arm(n) for n in ORDER])
    edited = judge_cohort(CONFIG, 2, [arm(n, identity={"sources": "edited", "machine": "m"}) for n in ORDER])
    assert edited.valid
    assert [c.valid for c in judge_series(CONFIG, [first, edited])] == [True, False]


def test_codes_are_counted_once_a_cohort():
    spoiled = judge_cohort(CONFIG, 1, [arm(n, **watched(swap_out_bytes=1)) for n in ORDER])
    assert codes([spoiled, cohort("4A", value=20.0), cohort()]) == {Code.CONTROL_DRIFT: 1, Code.SWAPPED_OUT: 1}


FAILURES = [{"timed_out": True}, {"exit_code": -9}, {"exit_code": 1, "error": "boom"}]


@pytest.mark.parametrize("failure", FAILURES)
def test_a_first_arm_that_fails_spoils_its_own_cohort_alone(failure):
    failed = {"value": None, "digests": {}, "identity": {"sources": "x"}} | failure
    first = cohort("1A", **failed)
    second = judge_cohort(CONFIG, 2, [arm(name) for name in ORDER], reference_of(CONFIG, [first]))
    assert (first.valid, second.valid) == (False, True)
    assert [each.valid for each in judge_series(CONFIG, [first, second])] == [False, True]
    assert reference_of(CONFIG, [first]).name == "2B"


@pytest.mark.parametrize("failure", FAILURES)
def test_results_that_differ_are_told_whatever_else_is_wrong(failure):
    arms = [arm("1A", **failure), arm("2B"), arm("3B", **digests(state_digest="other")), arm("4A", **watched(other_cores=3.0))]
    found = {reason.code for reason in judge_cohort(CONFIG, 1, arms).reasons}
    assert {Code.STATE_DIFFERS, Code.COMPETITOR} < found


@pytest.mark.parametrize("failure", FAILURES)
def test_an_arm_that_failed_is_no_reference_though_it_left_digests(failure):
    first = cohort("1A", **digests(output_digest="half"), **failure)
    assert reference_of(CONFIG, [first]).name == "2B"
    assert Code.OUTPUT_DIFFERS not in {reason.code for reason in first.reasons}
