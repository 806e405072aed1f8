from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from workbench.analysis.bootstrap import Estimate, Resampler
from workbench.analysis.locality import locality_sums
from workbench.analysis.locality_tables import least_acceptance_needed
from workbench.analysis.routes import routes_of
from workbench.errors import BadInput
from workbench.gates.b_locality import GATE, LocalityConfig
from workbench.gates.b_locality.measures import Measures
from workbench.gates.b_locality.verdict import conditions_of, criteria_of, limits_of
from workbench.gates.base import Findings, conclude, run_gate
from workbench.schema import Evidence, Outcome, read_events, read_routes
from workbench.simulate import planted

SHAPE = {"num_layers": 1, "num_experts": 128, "top_k": 10}
QUICK = ("fractions=[0.25]", "policies=[]", "resamples=200", "stalls.requests=1", "stalls.fractions=[0.25]")


@pytest.fixture(scope="module")
def traces(tmp_path_factory, write_trace):
    """Perfect locality in a full sample (40 held-out requests, 2 prompt and 128 decoded tokens each); none in a smaller one."""
    folder = tmp_path_factory.mktemp("traces")
    made = {
        "repeated": planted.repeated(num_requests=40, num_tokens=130, seed=3, **SHAPE),
        "independent": planted.independent(num_requests=16, num_tokens=50, seed=3, **SHAPE),
    }
    return {name: write_trace(folder / f"{name}.parquet", routes) for name, routes in made.items()}


@pytest.fixture(scope="module")
def runs(tmp_path_factory, traces):
    """Gate B's run on each trace."""
    root = tmp_path_factory.mktemp("runs")
    return {name: run_gate(GATE, GATE.configure(settings=[f"trace={path}", *QUICK]), root=root) for name, path in traces.items()}


def test_independent_draws_fail_with_every_code(runs):
    verdict = runs["independent"].result.verdict
    assert (verdict.outcome, verdict.codes) == (Outcome.FAIL, ("B.locality", "B.union", "B.breakeven"))
    assert {c.code: c.value for c in verdict.criteria} == {
        "B.locality": pytest.approx(1.0, abs=0.04),
        "B.union": pytest.approx(1.0, abs=0.02),
        "B.breakeven": pytest.approx(42.7 / 50, abs=0.01),
    }
    assert verdict.enables == ()


def test_one_token_repeated_passes(runs):
    result = runs["repeated"].result
    assert result.verdict.outcome is Outcome.PASS
    assert result.verdict.enables == ("gate F is not rejected",)
    assert result.metrics["routing/prev_token_overlap"] == 1.0
    assert result.metrics["routing/union_b5"] == pytest.approx(10.0)
    assert result.metrics["routing/misses_per_token"] == 0.0
    assert result.metrics["routing/decode_hit_rate"] == 1.0


def test_a_run_keeps_its_tables_figures_series_and_an_empty_event_table(runs):
    folder = runs["independent"]
    assert set(folder.result.tables) == {
        "overlap",
        "unions",
        "acceptance",
        "break_even",
        "unique",
        "reuse_within",
        "skew",
        "misses",
        "belady_gap",
        "slot_value",
        "stalls",
    }
    assert {path.stem for path in (folder.artifacts / "figures").glob("*.png")} == {
        "misses", "unions", "acceptance", "overlap", "reuse", "skew", "belady_gap", "slot_value", "stalls",
    }  # fmt: skip
    misses = pl.read_parquet(folder.artifacts / "tables" / "misses.parquet")
    assert set(misses["trace"]) == {"measured", "uniform draws", "popularity draws"}
    assert (misses["demand_bytes_per_token"] == misses["misses_per_token"] * 27_648).all()
    assert len(folder.result.per_token["routing/misses_per_token"]) == 48
    assert folder.result.evidence is Evidence.TRACE
    assert read_events(folder.path / "events.parquet").is_empty()


def measures(*, miss=(0.5, 0.45, 0.55), union=(0.8, 0.79, 0.81), acceptance=(0.6, 0.59, 0.61)):
    made = {"acceptance": pl.DataFrame({"block": [5], "acceptance_needed": [0.6]})}
    ends = [Estimate(value=np.array(v), low=np.array(lo), high=np.array(hi)) for v, lo, hi in (miss, miss, union, acceptance)]
    return Measures(
        miss_ratio=ends[0],
        miss_ratio_popularity=ends[1],
        union_ratio=ends[2],
        acceptance=ends[3],
        tables=made,
        metrics={},
        misses_by_step=np.zeros(1),
    )


@pytest.mark.parametrize(
    ("planted_measures", "outcome", "codes"),
    [
        (measures(), Outcome.PASS, ("B.locality", "B.union", "B.breakeven")),
        (measures(miss=(0.90, 0.87, 0.93)), Outcome.FAIL, ("B.locality",)),
        (measures(union=(0.97, 0.96, 0.98)), Outcome.FAIL, ("B.union",)),
        (measures(acceptance=(0.83, 0.82, 0.84)), Outcome.FAIL, ("B.breakeven",)),
        (measures(miss=(0.84, 0.80, 0.88)), Outcome.INCONCLUSIVE, ("B.locality",)),
        (measures(miss=(0.84, 0.80, 0.88), union=(0.97, 0.96, 0.98)), Outcome.FAIL, ("B.union",)),
    ],
)
def test_each_clause_decides_by_its_own_code(planted_measures, outcome, codes):
    verdict = conclude(Findings(criteria=criteria_of(planted_measures, LocalityConfig()), summary=""))
    assert (verdict.outcome, verdict.codes) == (outcome, codes)


def test_the_thresholds_are_the_registered_ones():
    criteria = criteria_of(measures(), LocalityConfig())
    assert [(c.code, c.relation, c.threshold) for c in criteria] == [
        ("B.locality", "<", 0.85),
        ("B.union", "<=", 0.95),
        ("B.breakeven", "<=", 0.80),
    ]
    assert "25% of the records" in criteria[0].statement
    assert (LocalityConfig().min_requests, LocalityConfig().min_tokens) == (40, 128)


def test_changed_thresholds_stand_in_the_verdict():
    assert not any("thresholds" in line for line in conditions_of(LocalityConfig()))
    assert "thresholds differ from the registered ones: max_miss_ratio" in conditions_of(LocalityConfig(max_miss_ratio=0.9))


@pytest.fixture
def repeated(traces):
    frame, shape = read_routes(traces["repeated"])
    return routes_of(frame, num_experts=shape["num_experts"])


def test_a_full_sample_has_no_limits_and_anything_less_has(repeated):
    config = LocalityConfig()
    assert limits_of(repeated, config) == {}
    assert "smoke run" in limits_of(repeated, LocalityConfig(smoke=True))["B.sample"]
    assert "39 of them held out" in limits_of(replace(repeated, splits=("train", *repeated.splits[1:])), config)["B.sample"]
    assert "0 with 129 decoded tokens" in limits_of(repeated, LocalityConfig(min_tokens=129))["B.sample"]
    assert "B.sample" in limits_of(repeated, LocalityConfig(min_requests=41))
    assert set(limits_of(repeated, LocalityConfig(profile="slice"))) == {"B.profile"}


def test_a_smoke_run_on_perfect_locality_is_inconclusive_at_best(tmp_path, write_trace):
    routes = planted.repeated(num_requests=6, num_tokens=26, seed=3, **SHAPE)
    path = write_trace(tmp_path / "small.parquet", routes)
    config = GATE.configure(smoke=True, settings=[f"trace={path}", *QUICK])
    verdict = run_gate(GATE, config, root=tmp_path).result.verdict
    assert (verdict.outcome, verdict.codes, verdict.enables) == (Outcome.INCONCLUSIVE, ("B.sample",), ())


def test_a_trace_of_another_geometry_is_refused(traces, tmp_path):
    config = GATE.configure(profile="flash-next", settings=[f"trace={traces['repeated']}"])
    with pytest.raises(BadInput, match="choose 10 of 128 experts, profile flash-next chooses 10 of 512"):
        run_gate(GATE, config, root=tmp_path)


def test_a_trace_that_is_not_there_is_refused_before_a_folder_is_made(tmp_path):
    with pytest.raises(BadInput, match="no such file"):
        run_gate(GATE, GATE.configure(settings=["trace=nowhere.parquet"]), root=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_the_best_block_is_chosen_anew_in_every_resample(repeated):
    sums = locality_sums(repeated)
    least = least_acceptance_needed(sums, repeated.top_k, Resampler(repeated.num_requests, num_resamples=50))
    assert float(least.high) == pytest.approx(0.2)
