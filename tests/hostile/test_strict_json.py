"""JSON is strict wherever the workbench writes it, and numbers that JSON lacks survive a round trip."""

import ast
import inspect
import json
import math
from pathlib import Path

import pytest

import workbench
from tests.hostile.commands import app, every_command, line_of
from workbench.cli.output import print_json
from workbench.config import Config
from workbench.files import json_text, read_json, with_numbers
from workbench.geometry import Geometry
from workbench.paths import bundled_model
from workbench.schema import Criterion, Evidence, Outcome, Result, RunFolder, decide

LACKING = [math.nan, math.inf, -math.inf]


def strict(text):
    def refuse(constant):
        raise AssertionError(f"{constant} in {text}")

    return json.loads(text, parse_constant=refuse)


def same(one, other):
    return json.dumps(one) == json.dumps(other)


def test_numbers_that_json_lacks_are_words_and_numbers_again():
    value = {"a": [1.5, *LACKING, {"b": (math.nan, 1, "nan", None, True)}], "c": "Infinite"}
    assert same(with_numbers(strict(json_text(value))), value)


def test_what_commands_print_is_strict(capsys):
    print_json("kind", {"rows": [{"value": value, "path": Path("a")} for value in LACKING]})
    assert strict(capsys.readouterr().out)["rows"][1] == {"value": "Infinity", "path": "a"}


@pytest.fixture
def finished(tmp_path):
    """A result with numbers that JSON lacks, wherever numbers are."""
    low, high, value = LACKING
    clause = Criterion(code="A.x", statement="x", value=value, low=low, high=high, relation="<", threshold=1.0)
    folder = RunFolder.create(tmp_path, "generate", Config(), profile="mini", evidence=Evidence.SIMULATED)
    folder.finish(
        metrics={"e2e/decode_tps": math.inf, "e2e/ttft_ms": math.nan},
        per_token={"overlap/exposed_wait_ms": [1.0, math.inf]},
        verdict=decide([clause]),
        tables={"rows": [{"a": value, "b": "NaN of text", "c": None} for value in LACKING]},
    )
    return folder


def test_a_result_that_is_read_again_is_the_one_that_was_written(finished):
    text = (finished.path / "result.json").read_text()
    assert strict(text)["metrics"]["e2e/decode_tps"] == "Infinity"
    found = finished.result
    assert found.metrics["e2e/decode_tps"] == math.inf
    assert math.isnan(found.metrics["e2e/ttft_ms"])
    assert found.per_token == {"overlap/exposed_wait_ms": [1.0, math.inf]}
    assert same([row["a"] for row in found.tables["rows"]], LACKING)
    assert found.verdict.outcome is Outcome.INCONCLUSIVE
    assert found.verdict.criteria[0].value == -math.inf
    assert json_text(found.model_dump(mode="json"), indent=1) + "\n" == text


def test_an_older_result_with_bare_words_is_read_as_the_same(finished):
    path = finished.path / "result.json"
    new = finished.result
    path.write_text(
        path.read_text().replace('"NaN"', "NaN").replace('"Infinity"', "Infinity").replace('"-Infinity"', "-Infinity")
    )
    assert "NaN," in path.read_text()
    assert same(finished.result.model_dump(mode="json"), new.model_dump(mode="json"))
    assert not finished.damage


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_foreign_files_with_other_numbers_are_refused(value, tmp_path):
    (tmp_path / "x.json").write_text(f'{{"a": [{value}]}}')
    with pytest.raises(ValueError, match=rf"x.json is not JSON: it holds {value}, which is no JSON number"):
        read_json(tmp_path / "x.json")


WRITERS = {"files.py": "json_text"}
"""The function that writes JSON for others; by module."""
EXACT = {
    "config.py", "gates/stage.py", "bundle/manifest.py", "bundle/version_1.py", "stores/manifest.py", "stores/slicing.py",
    "stores/safetensors_file.py", "stores/workspace.py", "stores/build.py", "stores/verified.py", "abba/arms.py",
    "tracking/store.py", "tracking/filing.py",
}  # fmt: skip
"""Modules that write JSON of text and integers, or digest it: their bytes must stay as they are."""


def test_json_of_figures_is_written_in_one_place():
    root = Path(workbench.__file__).parent
    found = {path.relative_to(root).as_posix() for path in root.rglob("*.py") if "json.dump" in path.read_text()}
    assert found == EXACT | WRITERS.keys()


def with_json():
    """Commands that can print JSON."""
    for command in every_command():
        found = app
        for word in command.split():
            found = found[word]
        if "json" in inspect.signature(found.default_command).parameters:
            yield command


def test_every_command_prints_json_by_one_function():
    modules = {inspect.getsourcefile(app[command.split()[0]].default_command or print_json) for command in with_json()}
    for module in modules:
        calls = [each for each in ast.walk(ast.parse(Path(module).read_text())) if isinstance(each, ast.Call)]
        assert not [call for call in calls if ast.unparse(call.func) in ("json.dumps", "json.dump")], module


@pytest.mark.parametrize("command", ["geometry", "generate", "simulate misses", "simulate twin", "plan", "verdicts"])
def test_json_of_commands_and_their_results_is_strict(command, end, tmp_path, mini_store, monkeypatch, write_trace, routes_small):
    monkeypatch.setenv("WORKBENCH_RUNS", str(tmp_path / "runs"))
    routes = write_trace(tmp_path / "routes.parquet", routes_small, num_experts=4)
    ended = end(line_of(command, routes=routes, store=mini_store) + " --json")
    assert ended.status == 0, ended.err
    strict(ended.out)
    for path in tmp_path.rglob("result.json"):
        strict(path.read_text())


def mini(**changed):
    return {**json.loads((bundled_model() / "config.json").read_text()), **changed}


NUMBERS = ["rope_theta", "partial_rotary_factor", "rms_norm_eps", "norm_topk_prob", "hidden_size", "ple_layer_ids", "seed"]


ODD = [*LACKING, -1, "1", [2, 2], [1.0], [True], {}, {"a": 1}, 10**4000, 2.0**100, 1.5]
TAKEN = [("rope_theta", 1.5), ("partial_rotary_factor", 1.5), ("rms_norm_eps", 1.5), ("ple_layer_ids", {})]
"""Odd values that say something: an empty table names no layer."""


@pytest.mark.parametrize("name", NUMBERS)
def test_odd_numbers_of_a_checkpoint_are_refused_in_one_line(name):
    flat = {key: each for key, each in mini().items() if key != "rope_parameters"}
    for value in ODD:
        if (name, value) not in TAKEN:
            with pytest.raises(ValueError, match=r"\S") as error:
                Geometry.from_config(flat | {name: value})
            assert len(str(error.value)) < 300


def test_a_checkpoint_names_each_layer_of_rows_once():
    with pytest.raises(ValueError, match=r"ple_layer_ids .* none twice"):
        Geometry.from_config(mini(ple_layer_ids=[2, 2]))


def test_results_allow_what_configurations_refuse():
    allowing = {kind for kind in (Result, Criterion) if kind.model_config["allow_inf_nan"]}
    assert allowing == {Result, Criterion}
    assert not Config.model_config["allow_inf_nan"]
