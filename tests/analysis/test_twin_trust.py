"""Simulated figures carry the errors of the newest validation of this machine and profile, and of no other."""

from dataclasses import replace

import pytest

from workbench.analysis import twin_trust
from workbench.analysis.twin_errors import ARM, Decoded, error_row, error_table, judge_twin
from workbench.analysis.twin_trust import estimates, trust
from workbench.config import Config
from workbench.hardware import machine
from workbench.schema import Evidence, RunFolder

LIVE = Decoded(hit_rate=0.8, token_ms=20.0, exposed_wait_ms=6.0, misses=16.0)


def validation(root, *, slower=1.0, profile="mini", arm=ARM, finish=True):
    rows = [error_row(LIVE, replace(LIVE, token_ms=20.0 * slower * (1 + 0.01 * number))) for number in range(10)]
    folder = RunFolder.create(root, "simulate", Config(), profile=profile, evidence=Evidence.SIMULATED, tags={"arm": arm})
    verdict = judge_twin(rows, max_error=0.2, min_runs=9, conditions=())
    if finish:
        folder.finish(verdict=verdict, tables={"errors": error_table(rows)})
    return folder


def test_without_a_validation_figures_have_no_interval_and_say_so(tmp_path):
    validation(tmp_path, profile="slice")
    validation(tmp_path, arm="sweep")
    validation(tmp_path, finish=False)
    trusted = trust(tmp_path, "mini")
    assert trusted.statement.startswith("twin not validated: no `workbench simulate validate` of mini on this machine")
    assert [row["low"] for row in estimates(LIVE, trusted)] == [None, None, None]
    assert trusted.speeds(50.0) == (None, None)


def test_the_newest_validation_counts(tmp_path):
    validation(tmp_path, slower=3.0)
    newest = validation(tmp_path, slower=1.0)
    trusted = trust(tmp_path, "mini")
    assert trusted.statement.startswith("the twin is fit")
    assert newest.path.name in trusted.statement
    # a twin that is 0 to 9 % slow: 21.8 ms stand for 20 to 21.8
    [_, time, _] = estimates(replace(LIVE, token_ms=21.8), trusted)
    assert (time["low"], time["high"]) == pytest.approx((20.0, 21.8))
    assert trusted.speeds(1 / 21.8) == pytest.approx((1 / 21.8, 1 / 20.0))


def test_an_unfit_twin_is_named_unfit_in_every_result(tmp_path):
    validation(tmp_path, slower=2.0)
    assert trust(tmp_path, "mini").statement.startswith("the twin is unfit")


def test_another_machines_validation_does_not_count(tmp_path, monkeypatch):
    validation(tmp_path)
    other = replace(machine(), cpu="another")
    monkeypatch.setattr(twin_trust, "machine", lambda: other)
    assert trust(tmp_path, "mini").errors == {}
