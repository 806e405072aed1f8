"""The golden result folder is what readers of results count on. A test that fails here asks for a new schema version."""

import json
from pathlib import Path

import polars as pl
import pytest

from workbench.errors import BadInput
from workbench.gates.b_locality import LocalityConfig
from workbench.schema import (
    EVENT_SCHEMA,
    METRICS,
    ROUTE_SCHEMA,
    Evidence,
    Outcome,
    Result,
    RunFolder,
    Status,
    list_runs,
    read_events,
    read_routes,
)

GOLDEN = Path(__file__).parents[1] / "data" / "golden_run"


@pytest.fixture
def folder():
    [only] = list_runs(GOLDEN)
    return only


def test_a_result_folder_holds_these_files(folder):
    assert {path.name for path in folder.path.iterdir()} == {
        "config.toml",
        "environment.json",
        "events.parquet",
        "result.json",
        "artifacts",
    }


def test_its_environment_has_these_fields(folder):
    assert set(folder.environment) == {
        "command", "python", "versions", "workbench", "commit", "dirty", "machine", "pid", "pid_started_unix_s",
        "kind", "run_id", "profile", "evidence", "config_digest", "started_unix_s", "tags",
    }  # fmt: skip
    assert set(folder.environment["machine"]) == {
        "system", "release", "architecture", "cpu", "num_cores", "memory_bytes", "virtual_machine", "digest",
    }  # fmt: skip


def test_its_result_is_read_and_writes_back_the_same(folder):
    stored = json.loads((folder.path / "result.json").read_text())
    assert stored["version"] == 1
    assert set(stored) == set(Result.model_fields)
    assert folder.result.model_dump(mode="json") == stored
    assert (folder.status, folder.result.evidence) == (Status.FINISHED, Evidence.TRACE)
    assert set(folder.result.metrics) <= METRICS.keys()
    assert folder.result.verdict.outcome is Outcome.INCONCLUSIVE
    assert folder.result.verdict.codes == ("B.sample",)


def test_its_configuration_has_the_digest_that_was_stored(folder):
    config = LocalityConfig.from_toml(folder.path / "config.toml")
    assert config.digest == folder.environment["config_digest"] == folder.result.config_digest


def test_its_events_and_routes_have_the_columns_of_their_versions(folder):
    events = read_events(folder.path / "events.parquet")
    assert events.select("kind", "committed_tokens").rows() == [("mark", None), ("token", 1)]
    frame, shape = read_routes(folder.artifacts / "routes.parquet")
    assert dict(frame.schema) == ROUTE_SCHEMA
    assert shape == {"num_layers": 1, "num_experts": 128, "top_k": 10}


@pytest.mark.parametrize(("name", "reader"), [("events.parquet", read_events), ("artifacts/routes.parquet", read_routes)])
def test_another_version_is_refused_in_one_line(tmp_path, name, reader):
    schema = EVENT_SCHEMA if "events" in name else ROUTE_SCHEMA
    pl.DataFrame(schema=schema).write_parquet(tmp_path / "x.parquet", metadata={"events_version": "99", "routes_version": "99"})
    with pytest.raises(BadInput, match="version 99, this workbench reads 1"):
        reader(tmp_path / "x.parquet")


def test_a_result_of_another_version_is_refused(tmp_path):
    (tmp_path / "result.json").write_text(json.dumps({"version": 2}))
    with pytest.raises(BadInput, match="result version 2"):
        _ = RunFolder(tmp_path).result
