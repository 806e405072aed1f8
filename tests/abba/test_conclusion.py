"""What a series of recorded cohorts comes to, in words and figures."""

import pytest

from workbench.abba.conclusion import conclude, is_decided, is_hopeless
from workbench.abba.records import ORDER, AbbaConfig, ArmRecord, Code, CohortRecord, Reason, WatchRecord
from workbench.schema import Evidence, Outcome, check_metric_names

WATCH = WatchRecord(wall_s=1, num_samples=2, longest_gap_s=1, swap_out_bytes=0, memory_pressure=0, other_cores=0, stolen_cores=0)
STEADY = (1.0, 1.001, 0.999, 1.002, 0.998, 1.0)


def series(ratio, count=4, *, bytes_a=100.0, bytes_b=100.0, noise=STEADY, spoiled=0):
    """Cohorts whose B arms have `ratio` times A's value, and some that do not count."""
    cohorts = []
    for number in range(count + spoiled):
        values = [10.0, 10.0 * ratio * noise[number % len(noise)], 10.0 * ratio, 10.0]
        arms = tuple(
            ArmRecord(
                name=name,
                exit_code=0,
                started_ns=0,
                duration_s=1,
                value=value,
                bytes_per_token=bytes_b if name.endswith("B") else bytes_a,
                watch=WATCH,
            )
            for name, value in zip(ORDER, values, strict=True)
        )
        why = (Reason(code=Code.SWAPPED_OUT, where="2B", detail="4,096 bytes"),) if number >= count else ()
        cohorts.append(CohortRecord(number=number + 1, arms=arms, reasons=why))
    return cohorts


def config(**values):
    return AbbaConfig.build({"base": {"x": 1}, "change": ["x=2"], "cohorts": 4, **values})


def end(records, **values):
    result = conclude(config(**values), records, virtual_machine=True)
    check_metric_names(result.metrics)
    return result


@pytest.mark.parametrize(
    ("ratio", "settings", "outcome", "code"),
    [
        (1.1, {}, Outcome.PASS, "abba.better"),
        (0.9, {}, Outcome.FAIL, "abba.worse"),
        (1.01, {}, Outcome.FAIL, "abba.no_gain"),
        (1.1, {"better": "lower"}, Outcome.FAIL, "abba.worse"),
        (0.9, {"better": "lower"}, Outcome.PASS, "abba.better"),
        (1.0, {"change": []}, Outcome.PASS, "abba.null_holds"),
        (0.9, {"change": []}, Outcome.FAIL, "abba.null_broken"),
        (1.1, {"change": []}, Outcome.FAIL, "abba.null_broken"),
    ],
)
def test_outcomes(ratio, settings, outcome, code):
    result = end(series(ratio), **settings)
    assert (result.verdict.outcome, result.verdict.codes) == (outcome, (code,))
    assert result.metrics["effect/ratio"] == pytest.approx(ratio, rel=1e-3)
    assert result.metrics["effect/ratio_low"] < result.metrics["effect/ratio"] < result.metrics["effect/ratio_high"]
    assert {criterion.code for criterion in result.verdict.criteria} == {"abba.effect", "abba.minimum_effect", "abba.cohorts"}


def test_noise_leaves_it_undecided():
    result = end(series(1.03, noise=(0.8, 1.2, 0.9, 1.1)))
    assert (result.verdict.outcome, result.verdict.codes, result.verdict.enables) == (
        Outcome.INCONCLUSIVE,
        ("abba.undecided",),
        (),
    )


@pytest.mark.parametrize(("ratio", "noise"), [(1.01, (0.8, 1.2, 0.9, 1.1)), (0.99, (0.97, 1.03, 0.95, 1.05))])
def test_a_null_series_whose_interval_is_wider_than_the_effect_shows_nothing(ratio, noise):
    result = end(series(ratio, noise=noise), change=[])
    assert (result.verdict.outcome, result.verdict.codes) == (Outcome.INCONCLUSIVE, ("abba.undecided",))
    assert "a difference of 2.0% or more is not excluded" in result.verdict.summary


@pytest.mark.parametrize("sign", [1, -1])
def test_a_null_interval_may_leave_the_effect_on_neither_side(sign):
    noise = tuple(1 + sign * each for each in (-0.08, -0.01, -0.05, 0.0))
    result = end(series(1.0, noise=noise), change=[])
    low, high = result.metrics["effect/ratio_low"] - 1, result.metrics["effect/ratio_high"] - 1
    assert min(abs(low), abs(high)) < 0.02 < max(abs(low), abs(high))
    assert result.verdict.outcome is Outcome.INCONCLUSIVE


def test_too_few_cohorts_are_indicative_and_a_gain_needs_all_that_were_planned():
    assert end(series(1.1, 3)).verdict.codes == ("abba.indicative",)
    assert end(series(1.1, 1)).metrics["effect/ratio_low"] == pytest.approx(1.1)
    assert end(series(1.1, 4), cohorts=6).verdict.codes == ("abba.undecided",)
    assert end(series(0.9, 4), cohorts=6).verdict.codes == ("abba.worse",)
    assert not is_decided(config(cohorts=6), series(1.1, 5))
    assert is_decided(config(cohorts=6), series(0.9, 4))


def test_spoiled_cohorts_are_shown_and_not_counted():
    result = end(series(1.1, 4, spoiled=2))
    assert result.metrics["effect/cohorts_valid"] == 4
    assert result.metrics["effect/cohorts_run"] == 6
    assert any("swapped_out in 2" in line for line in result.verdict.conditions)
    assert [row["counts"] for row in result.tables["cohorts"]] == [True] * 4 + [False] * 2
    assert "4,096 bytes" in result.tables["cohorts"][5]["reasons"]
    nothing = end(series(1.1, 0, spoiled=1))
    assert (nothing.verdict.outcome, nothing.verdict.codes) == (Outcome.INCONCLUSIVE, ("abba.no_valid_cohort",))


def test_a_series_is_hopeless_when_its_first_two_cohorts_fail_alike_for_a_lasting_reason():
    def failed(*codes):
        cohorts = series(1.0, len(codes))
        reasons = [tuple(Reason(code=code, where="1A", detail="") for code in each) for each in codes]
        return [cohort.model_copy(update={"reasons": why}) for cohort, why in zip(cohorts, reasons, strict=True)]

    plan, output, drift = Code.PLAN_DIFFERS, Code.OUTPUT_DIFFERS, Code.CONTROL_DRIFT
    assert is_hopeless(failed([plan], [drift, plan], [drift]))
    for cohorts in ([[plan]], [[plan], [output]], [[drift], [drift]], [[plan], [plan], []], []):
        assert not is_hopeless(failed(*cohorts))


def test_much_drift_says_what_would_help():
    drifted = (Reason(code=Code.CONTROL_DRIFT, where="cohort", detail="5 %"),)
    rejected = [cohort.model_copy(update={"reasons": drifted}) for cohort in series(1.0, 5)]
    assert "longer arms" in end(rejected).verdict.conditions[-1]
    assert any("longer arms" in line for line in end([*series(1.1), *rejected]).verdict.conditions)
    assert not any("longer arms" in line for line in end([*series(1.1), *rejected[:2]]).verdict.conditions)


def test_no_gain_is_told_without_the_bytes_it_costs():
    assert "bytes" not in end(series(1.1)).verdict.summary
    assert "while demand and wasted bytes per token rise by 20.0%" in end(series(1.1, bytes_b=120.0)).verdict.summary
    assert "B is to be preferred" not in end(series(1.1, bytes_b=80.0)).verdict.summary
    within_noise = end(series(1.005, bytes_b=80.0)).verdict
    assert within_noise.summary.endswith("20.0% fewer demand and wasted bytes per token, for which B is to be preferred")


def test_conditions_say_what_the_verdict_rests_on():
    conditions = end(series(1.1), evidence=Evidence.EMULATED, cache_state="cold_store").verdict.conditions
    assert conditions[0] == "profile mini, cache state cold_store"
    assert "emulated: no physical verdict" in conditions
    assert any(line.startswith("virtual machine") for line in conditions)
    assert "this machine does not report its power source, power mode, thermal state" in conditions


def test_the_conclusion_depends_on_the_records_alone():
    assert end(series(1.1)) == end(series(1.1))
