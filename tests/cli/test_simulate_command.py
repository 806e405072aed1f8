"""`workbench simulate` prints tables or JSON, writes traces, and refuses what it can't use in one line."""

import json

import pytest

from workbench.schema import read_routes

SMALL = ["--set", "routes.layers=6", "--set", "routes.experts=64", "--set", "routes.top_k=4", "--set", "routes.tokens=12"]


@pytest.fixture
def run(command_line, tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_RUNS", str(tmp_path / "runs"))
    return command_line


def test_misses_and_twin_print_what_they_simulated(run, capsys):
    assert run(["simulate", "misses", "repeated", *SMALL, "--set", "fractions=[0.1]", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["evidence"], len(content["tables"]["misses"])) == ("simulated", 7)
    assert run(["simulate", "twin", *SMALL, "--slots", "50", "--envelope", "usb-10gbps"]) == 0
    out = capsys.readouterr().out
    assert "usb-10gbps, 50 slots, nothing, simulated" in out
    assert "| e2e/decode_tps" in out


def test_validate_exits_by_its_verdict_and_prints_runs_and_errors(run, tmp_path, capsys, monkeypatch):
    from workbench.analysis.twin_errors import Decoded, error_row, error_table, judge_twin
    from workbench.experiments import twin_validation
    from workbench.schema import Evidence, RunFolder

    live = Decoded(hit_rate=0.8, token_ms=20.0, exposed_wait_ms=6.0, misses=16.0)
    slower = Decoded(hit_rate=0.8, token_ms=30.0, exposed_wait_ms=6.0, misses=16.0)
    case = {"family": "prose", "cache_share": 0.25, "policy": "lru", "wave": "4", "envelope": "", "live_evidence": "physical"}

    def planted(config, root=None):
        twin = slower if config.seed else live
        rows = [{**case, **error_row(live, twin)} for _ in range(9)]
        made = RunFolder.create(
            tmp_path / "runs", "simulate", config, profile="mini", evidence=Evidence.SIMULATED, tags={"arm": "validation"}
        )
        verdict = judge_twin(rows, max_error=config.max_error, min_runs=9, conditions=("planted",))
        made.finish(verdict=verdict, tables={"errors": error_table(rows), "runs": rows})
        return made

    monkeypatch.setattr(twin_validation, "validate_twin", planted)
    monkeypatch.setattr("workbench.gates.traces.ensure_store", lambda profile: None)
    assert run(["simulate", "validate", "--set", "seed=1"]) == 1
    out = capsys.readouterr().out
    assert "**FAIL** (twin.token_time). the twin is unfit" in out
    assert "| this one | 25%" in out
    assert "Live (evidence: last column) / twin (simulated)" in out
    assert run(["simulate", "validate", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"]["outcome"] == "pass"


def test_a_twin_that_was_not_validated_says_so(run, capsys):
    assert run(["simulate", "twin", *SMALL, "--slots", "50"]) == 0
    assert "twin not validated" in capsys.readouterr().out
    assert run(["simulate", "sweep", *SMALL, "--set", "num_slots=[50]", "--set", "policies=['lru']", "--set", "workers=1"]) == 0
    out = capsys.readouterr().out
    assert "tokens_per_s_low" in out
    assert "twin not validated" in out


def test_routes_are_written_and_foreign_ones_imported(run, tmp_path, capsys):
    made = tmp_path / "deep" / "loop.parquet"
    shape = ["--set", "layers=2", "--set", "experts=32", "--set", "top_k=4", "--set", "tokens=9", "--set", "period=3"]
    assert run(["simulate", "routes", "loop", "--out", str(made), *shape]) == 0
    assert read_routes(made)[1] == {"num_layers": 2, "num_experts": 32, "top_k": 4}
    foreign = tmp_path / "foreign.jsonl"
    foreign.write_text('{"request": 0, "position": 5, "layer": 0, "ids": [3, 1]}\n')
    arguments = ["--layers", "1", "--experts", "4", "--top-k", "2", "--out", str(tmp_path / "ours.parquet")]
    assert run(["simulate", "import", str(foreign), *arguments]) == 0
    assert "1 requests, 1 tokens" in capsys.readouterr().out
    assert read_routes(tmp_path / "ours.parquet")[0]["experts"].to_list() == [[3, 1]]
    assert run(["simulate", "import", str(foreign), *arguments[:-3], "3", *arguments[-2:]]) == 2
    assert "ids does not name 3 experts" in capsys.readouterr().err


def test_unknown_words_suggest_the_nearest(run, capsys):
    assert run(["simulate", "mises"]) == 2
    assert "no such command: simulate 'mises'; did you mean misses?" in capsys.readouterr().err


def test_bad_settings_exit_with_one_line(run, capsys):
    assert run(["simulate", "misses", "--set", "polices=[]"]) == 2
    assert "polices: no such setting; did you mean policies?" in capsys.readouterr().err
    assert run(["simulate", "misses", "repeated", *SMALL, "--set", 'policies=["lrux"]']) == 2
    assert "no cache policy 'lrux'" in capsys.readouterr().err
