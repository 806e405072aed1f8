"""`workbench simulate` prints tables or JSON, writes traces, and refuses what it can't use in one line."""

import json

import pytest

from workbench.cli import app, commands, run
from workbench.schema import read_routes

SMALL = ["--set", "routes.layers=6", "--set", "routes.experts=64", "--set", "routes.top_k=4", "--set", "routes.tokens=12"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_RUNS", str(tmp_path / "runs"))
    if "simulate" not in app:
        commands.register(app)


def test_misses_and_twin_print_what_they_simulated(capsys):
    assert run(["simulate", "misses", "repeated", *SMALL, "--set", "fractions=[0.1]", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["evidence"], len(content["tables"]["misses"])) == ("simulated", 7)
    assert run(["simulate", "twin", *SMALL, "--slots", "50", "--envelope", "usb-10gbps"]) == 0
    out = capsys.readouterr().out
    assert "usb-10gbps, 50 slots, none, simulated" in out
    assert "| e2e/decode_tps" in out


def test_routes_are_written_and_foreign_ones_imported(tmp_path, capsys):
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


def test_unknown_words_suggest_the_nearest(capsys):
    assert run(["simulate", "mises"]) == 2
    assert "no such command: simulate 'mises'; did you mean misses?" in capsys.readouterr().err


def test_bad_settings_exit_with_one_line(capsys):
    assert run(["simulate", "misses", "--set", "polices=[]"]) == 2
    assert "polices: no such setting; did you mean policies?" in capsys.readouterr().err
    assert run(["simulate", "misses", "repeated", *SMALL, "--set", 'policies=["lrux"]']) == 2
    assert "no cache policy 'lrux'" in capsys.readouterr().err
