"""Gate B from end to end on planted traces."""

import polars as pl
import pytest

from workbench.errors import BadInput
from workbench.gates.b_locality import GATE
from workbench.gates.base import run_gate
from workbench.schema import Evidence, Outcome, read_events
from workbench.simulate import planted

SHAPE = {"num_layers": 1, "num_experts": 128, "top_k": 10}
QUICK = ("fractions=[0.25]", "policies=[]", "resamples=200", "stalls.requests=1", "stalls.fractions=[0.25]")


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
