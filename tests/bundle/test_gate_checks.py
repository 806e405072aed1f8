"""A gate's clauses are measured again from the trace in its bundle."""

import json
import shutil
from pathlib import Path

import pytest

from workbench.bundle import State, check_bundle, make_bundle
from workbench.schema import RunFolder, read_routes

GOLDEN = Path(__file__).parents[1] / "data" / "golden_run" / "gate_b"


@pytest.fixture
def gate(tmp_path):
    """The golden run of Gate B, its trace where its result says, its digest that of this version's configuration."""
    from workbench.gates.b_locality import LocalityConfig

    folder = RunFolder(shutil.copytree(next(GOLDEN.iterdir()), tmp_path / "gate_b" / "run"))
    digest = LocalityConfig.from_toml(folder.path / "config.toml").digest
    edit(folder, "environment.json", lambda content: content.update(config_digest=digest))
    edit(folder, "result.json", lambda content: content.update(config_digest=digest))
    edit(folder, "result.json", lambda content: content["tags"].update(trace=str(folder.artifacts / "routes.parquet")))
    return folder


def edit(folder, name, change):
    content = json.loads((folder.path / name).read_text())
    change(content)
    (folder.path / name).write_text(json.dumps(content))


def check(folder, tmp_path):
    make_bundle(folder, tmp_path / "gate.tar")
    return {check.what: check for check in check_bundle(tmp_path / "gate.tar")[1]}


def test_clauses_follow_from_the_trace(gate, tmp_path):
    checks = check(gate, tmp_path)
    assert [each for each in checks.values() if each.state is State.FAILED] == []
    assert checks["clauses"].detail == "3 measured again from routes.parquet"
    assert checks["verdict"].state is State.OK


def test_an_altered_clause_is_found(gate, tmp_path):
    edit(gate, "result.json", lambda content: content["verdict"]["criteria"][1].update(value=0.5))
    assert "B.union.value is 0.5" in check(gate, tmp_path)["clauses"].detail


def test_an_outcome_that_its_clauses_do_not_give_is_found(gate, tmp_path):
    edit(gate, "result.json", lambda content: content["verdict"].update(outcome="fail", codes=["B.union"]))
    assert "its clauses give pass" in check(gate, tmp_path)["verdict"].detail


def test_without_its_trace_it_says_what_is_missing(gate, tmp_path):
    edit(gate, "result.json", lambda content: content["tags"].update(trace="/nowhere/routes.parquet"))
    clauses = check(gate, tmp_path)["clauses"]
    assert clauses.state is State.NOT_CHECKED
    assert "/nowhere/routes.parquet is not in the bundle" in clauses.detail


def own_statements(folder):
    """Statements of the clauses as this workbench words them."""
    from workbench.analysis.routes import routes_of
    from workbench.gates.b_locality import LocalityConfig
    from workbench.gates.b_locality.measures import measure
    from workbench.gates.b_locality.verdict import criteria_of
    from workbench.gates.traces import profile_geometry

    config = LocalityConfig.from_toml(folder.path / "config.toml")
    frame, shape = read_routes(folder.artifacts / "routes.parquet")
    routes = routes_of(frame, num_experts=shape["num_experts"])
    measures = measure(routes, config, profile_geometry(config.profile).record_bytes)
    return {criterion.code: criterion.statement for criterion in criteria_of(measures, config)}


def test_a_clause_whose_words_are_not_this_workbenchs_is_told_as_not_checked(gate, tmp_path):
    own = own_statements(gate)

    def word(content):
        for criterion in content["verdict"]["criteria"]:
            criterion["statement"] = own[criterion["code"]]

    edit(gate, "result.json", word)
    assert check(gate, tmp_path)["statements"].state is State.OK
    edit(gate, "result.json", lambda content: content["verdict"]["criteria"][1].update(statement="everything is fine"))
    statements = check(gate, tmp_path)["statements"]
    assert statements.state is State.NOT_CHECKED
    assert statements.detail.startswith("B.union: worded otherwise")
