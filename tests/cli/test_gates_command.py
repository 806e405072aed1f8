import json

import pytest
from cyclopts import App

from workbench.cli import gates, track
from workbench.errors import BadInput, UnmetPrerequisite
from workbench.gates.base import GateConfig
from workbench.schema import Evidence, RunFolder, list_runs


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


@pytest.fixture
def command(runs):
    """Runs one command line of a fresh `workbench`; returns its exit status."""
    app = App(name="workbench", result_action="return_value")
    gates.register(app)
    track.register(app)
    return lambda *words: app([*words], exit_on_error=False, print_error=False)


@pytest.fixture
def planted(monkeypatch, make_gate):
    """Two gates take the place of the real ones: Y needs X."""
    known = {"X": make_gate("x_first"), "Y": make_gate("y_second", needs=("x_first",))}
    monkeypatch.setattr(gates, "find_gate", lambda name: known[name])
    monkeypatch.setattr(gates, "all_gates", lambda: list(known.values()))


def rows(told):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in told.splitlines() if line.startswith("| ")]


def test_workbench_alone_prints_where_the_gates_stand_and_what_to_type_next(command, capsys, planted):
    assert command() is None
    head, first, second = rows(capsys.readouterr().out)
    assert head == ["gate", "state", "verdict", "age", "next"]
    assert first == ["X first", "missing", "-", "-", "workbench gate x_first"]
    assert second == ["Y second", "missing", "-", "-", "workbench gate y_second"]
    command("gate", "X")
    capsys.readouterr()
    command("--json")
    told = json.loads(capsys.readouterr().out)
    assert told["schema_version"] == 1
    first, _ = told["gates"]
    assert (first["state"], first["verdict"], first["next"]) == ("fresh", "pass (X.one)", "workbench notebook x_first")


@pytest.mark.parametrize(("value", "status", "word"), [("0.5", 0, "PASS"), ("2.0", 1, "FAIL"), ("1.0", 4, "INCONCLUSIVE")])
def test_a_gate_exits_by_its_verdict_and_prints_it_on_stdout(command, capsys, planted, value, status, word):
    assert command("gate", "X", "--set", f"value={value}") == status
    told = capsys.readouterr()
    assert f"**{word}** (X.one). so it is" in told.out
    assert "**Sizes (trace)**" in told.out
    assert told.err.startswith("gate X: running")


def test_a_fresh_gate_is_not_run_again_unless_asked(command, capsys, planted, runs, monkeypatch):
    command("gate", "X", "--smoke")
    command("gate", "X", "--smoke")
    assert "reusing" in capsys.readouterr().err
    assert len(list(list_runs(runs, "gate_x"))) == 1
    monkeypatch.setattr("sys.argv", ["workbench", "gate", "X", "--smoke", "--again"])
    command("gate", "X", "--smoke", "--again")
    assert "again: workbench gate X --smoke --again\n" in capsys.readouterr().err
    assert len(list(list_runs(runs, "gate_x"))) == 2
    command()
    assert rows(capsys.readouterr().out)[-2][1] == "fresh (smoke)"


def test_a_gate_without_its_predecessor_stops_unless_anyway(command, planted):
    with pytest.raises(UnmetPrerequisite, match="gate Y needs gate x_first"):
        command("gate", "Y")
    assert command("gate", "Y", "--anyway") == 0


def test_all_gates_exit_0_when_each_reached_a_verdict_and_end_in_the_table(command, capsys, planted):
    assert command("gate", "all", "--set", "value=2.0", "--anyway") == 0
    told = capsys.readouterr().out
    assert told.index("**Verdicts**") > told.index("# Gate Y") > told.index("# Gate X")
    assert "conditional on gate x_first (fail)" in told
    assert "`make lab`" in told
    assert "`make ui`" in told


def test_all_gates_exit_3_when_one_could_not_run_and_the_others_are_kept(command, capsys, planted):
    assert command("gate", "all", "--set", "value=2.0") == 3
    told = capsys.readouterr()
    assert "gate Y needs gate x_first, which is fail" in told.err
    assert "# Gate X" in told.out


def test_json_holds_the_verdict_with_its_criteria(command, capsys, planted):
    command("gate", "X", "--json")
    [gate] = json.loads(capsys.readouterr().out)["gates"]
    assert gate["gate"] == "x_first"
    assert gate["verdict"]["outcome"] == "pass"
    assert [criterion["code"] for criterion in gate["verdict"]["criteria"]] == ["X.one"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("gat", "B"), "no such command: 'gat'; did you mean gate"),
        (("zzz",), "no such command: 'zzz'; see workbench --help"),
        (("gate", "localty"), "did you mean locality"),
        (("gate", "B", "--set", "resampels=3"), "did you mean resamples"),
        (("gate", "B", "--profile", "minni"), "profile"),
        (("notebook", "strat"), "did you mean start"),
    ],
)
def test_wrong_words_are_refused_in_one_line_with_the_nearest(command, words, message):
    with pytest.raises(BadInput, match=message) as caught:
        command(*words)
    assert "\n" not in str(caught.value)


def test_the_page_is_not_opened_beside_a_run(command, runs):
    folder = RunFolder.create(runs, "generate", GateConfig(), profile="mini", evidence=Evidence.PHYSICAL)
    with pytest.raises(UnmetPrerequisite, match=f"{folder.path.name} is still running"):
        command("ui")
