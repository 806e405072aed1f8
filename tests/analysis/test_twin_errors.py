"""Errors of the twin: computed from events, judged by thresholds, and a planted error makes the twin unfit."""

import math

import polars as pl
import pytest

from workbench.analysis.twin_errors import Decoded, decoded, error_row, error_table, judge_twin
from workbench.schema import EventLog, Outcome


def run(*, hit_rate=0.8, token_ms=20.0, wait_ms=6.0):
    return Decoded(hit_rate=hit_rate, token_ms=token_ms, exposed_wait_ms=wait_ms, misses=16.0)


def rows(num_runs=9, *, factor=1.0):
    """Live runs that differ, and twins within 6 % of them whose waits are `factor` times that."""
    made = []
    for number in range(num_runs):
        near = 1 + 0.02 * (number % 7 - 3)
        live = run(token_ms=20 + number, wait_ms=6 + number)
        made.append(error_row(live, run(token_ms=live.token_ms * near, wait_ms=live.exposed_wait_ms * near * factor)))
    return made


def judge(found, **changed):
    return judge_twin(found, **{"max_error": 0.2, "min_runs": 9, "conditions": ()} | changed)


def test_figures_are_those_of_decoded_tokens():
    log = EventLog()
    for phase, scale in (("prefill", 100), ("decode", 1)):
        for position in range(2):
            at = {"phase": phase, "position": position}
            log.add(0, "demand", store="expert", layer=0, hits=6 * scale, joined=1, misses=3 * scale, **at)
            log.add(0, "demand", store="ple", layer=0, hits=1, joined=0, misses=15, **at)
            log.add(0, "wait", store="expert", layer=0, duration_ns=3_000_000 * scale, **at)
            log.add(0, "wait", store="ple", layer=0, duration_ns=1_000_000, **at)
            log.add(0, "token", duration_ns=10_000_000 * scale, committed_tokens=1, **at)
    assert decoded(log.frame()) == Decoded(hit_rate=0.6, token_ms=10.0, exposed_wait_ms=4.0, misses=3.0)


def test_errors_are_relative_and_next_to_no_wait_is_compared_with_the_token():
    row = error_row(run(), run(hit_rate=0.72, token_ms=22.0, wait_ms=7.5))
    assert row["hits_error"] == pytest.approx(-0.1)
    assert row["token_time_error"] == pytest.approx(0.1)
    assert row["exposed_wait_error"] == pytest.approx(0.25)
    assert (row["live_token_ms"], row["twin_token_ms"]) == (20.0, 22.0)
    # 0.1 ms of 20 counts as 1 ms
    assert error_row(run(wait_ms=0.1), run(wait_ms=0.3))["exposed_wait_error"] == pytest.approx(0.2)


def test_the_distribution_of_errors_by_hand():
    [hits, time, wait] = error_table([error_row(run(), run(token_ms=20.0 * factor)) for factor in (0.9, 1.0, 1.3)])
    assert (hits["quantity"], hits["runs"], hits["highest"], hits["mean_absolute"]) == ("hits", 3, 0.0, 0.0)
    found = [time[name] for name in ("lowest", "median", "highest", "mean_absolute")]
    assert found == pytest.approx([-0.1, 0.0, 0.3, 0.4 / 3])
    assert time["mean_absolute_low"] < time["mean_absolute"] < time["mean_absolute_high"]
    assert wait["quantity"] == "exposed_wait"


def test_a_near_twin_is_fit():
    verdict = judge(rows())
    assert (verdict.outcome, verdict.codes) == (Outcome.PASS, ("twin.hits", "twin.token_time", "twin.exposed_wait"))
    assert verdict.summary.startswith("the twin is fit: mean absolute errors over 9 live runs: hits 0.0%, token time 3.")


@pytest.mark.parametrize("factor", [0.6, 1.4])
def test_a_planted_error_makes_it_unfit_by_its_clause(factor):
    verdict = judge(rows(factor=factor))
    assert (verdict.outcome, verdict.codes) == (Outcome.FAIL, ("twin.exposed_wait",))
    assert verdict.outcome.exit_code == 1
    assert verdict.summary.startswith("the twin is unfit: ")


def test_an_interval_across_the_threshold_shows_nothing():
    verdict = judge(rows(8) + rows(4, factor=1.8))
    assert (verdict.outcome, verdict.codes) == (Outcome.INCONCLUSIVE, ("twin.exposed_wait",))
    assert verdict.outcome.exit_code == 4
    assert "not shown to be fit" in verdict.summary


def test_too_few_runs_show_nothing_but_may_show_that_it_is_unfit():
    verdict = judge(rows(8))
    assert (verdict.outcome, verdict.codes) == (Outcome.INCONCLUSIVE, ("twin.sample",))
    assert judge(rows(8, factor=2.0)).outcome is Outcome.FAIL
    [alone, *_] = error_table(rows(1))
    assert math.isnan(alone["mean_absolute_low"])
    assert judge(rows(1)).outcome is Outcome.INCONCLUSIVE


def test_rows_go_into_parquet(tmp_path):
    pl.DataFrame(rows()).write_parquet(tmp_path / "runs.parquet")
    assert pl.read_parquet(tmp_path / "runs.parquet").height == 9
