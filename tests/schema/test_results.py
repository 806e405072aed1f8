import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.config import Config
from workbench.schema import Evidence, RunFolder, Status, list_runs, read_events
from workbench.schema.results import ARM_VARIABLE


class Settings(Config):
    """Of the example run."""

    steps: int = 3
    """Steps."""


@pytest.fixture
def create(tmp_path):
    def create(**changes):
        options = {"profile": "mini", "evidence": Evidence.TRACE, "command": ["workbench", "x"]} | changes
        return RunFolder.create(tmp_path, "example", Settings(), **options)

    return create


def test_configuration_and_environment_come_first(create):
    folder = create(tags={"gate": "B"})
    assert Settings.from_toml(folder.path / "config.toml") == Settings()
    assert folder.environment["config_digest"] == Settings().digest
    assert folder.environment["tags"] == {"gate": "B"}
    assert folder.environment["command"] == ["workbench", "x"]
    assert not (folder.path / "result.json").exists()
    assert folder.result is None
    assert folder.status is Status.RUNNING


def test_a_finished_run_holds_what_it_was_given(create):
    with create() as folder:
        folder.events.add(1, "token")
        result = folder.finish(metrics={"e2e/decode_tps": 2.5}, per_token={"e2e/tpot_p50_ms": [1, 2]}, tags={"arm": "A"})
    assert folder.result == result
    assert folder.status is result.status is Status.FINISHED
    assert (result.metrics, result.tags) == ({"e2e/decode_tps": 2.5}, {"arm": "A"})
    assert result.duration_s >= 0
    assert read_events(folder.path / "events.parquet").height == 1


@pytest.mark.parametrize(
    ("error", "status"), [(ValueError("bad\nsecond line"), Status.FAILED), (KeyboardInterrupt(), Status.INTERRUPTED)]
)
def test_an_exception_ends_the_run_with_its_first_line_and_keeps_events(create, error, status):
    folder = create()
    folder.events.add(1, "token")
    with pytest.raises(type(error)), folder:
        raise error
    assert folder.status is status
    assert folder.result.error == f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    assert read_events(folder.path / "events.parquet").height == 1


def test_an_exception_after_the_end_changes_nothing(create):
    folder = create()
    folder.finish()
    with pytest.raises(RuntimeError), folder:
        raise RuntimeError
    assert folder.status is Status.FINISHED


def test_a_metric_outside_the_registry_is_refused_and_nothing_is_written(create):
    folder = create()
    with pytest.raises(ValueError, match="not in the registry"):
        folder.finish(metrics={"made/up": 1})
    assert folder.result is None


def test_a_run_whose_process_is_gone_is_abandoned(tmp_path):
    script = (
        "import sys; from pathlib import Path; from workbench.config import Config; from workbench.schema import *\n"
        "RunFolder.create(Path(sys.argv[1]), 'example', Config(), profile='mini', evidence=Evidence.TRACE)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
    [folder] = list_runs(tmp_path)
    assert folder.status is Status.ABANDONED


def test_a_process_id_used_again_does_not_keep_a_run_alive(create):
    folder = create()
    about = folder.environment
    (folder.path / "environment.json").write_text(json.dumps(about | {"pid_started_unix_s": about["pid_started_unix_s"] - 3600}))
    assert folder.status is Status.ABANDONED


def test_reopening_makes_this_process_the_owner_and_keeps_the_earlier_result(create):
    folder = create()
    about = folder.environment
    (folder.path / "environment.json").write_text(json.dumps(about | {"pid": 1, "pid_started_unix_s": 0}))
    folder.finish(status=Status.INTERRUPTED)
    folder.reopen()
    assert folder.status is Status.RUNNING
    assert folder.environment["earlier_pids"] == [1]
    assert json.loads((folder.artifacts / "result-1.json").read_text())["status"] == "interrupted"


def test_runs_are_listed_in_the_order_they_began(create, tmp_path):
    made = [create().path for _ in range(3)]
    (tmp_path / "example" / "not-a-run").mkdir()
    assert [folder.path for folder in list_runs(tmp_path)] == sorted(made)
    assert list(list_runs(tmp_path, "other")) == []
    assert {path.name[:18] for path in made} == {path.name[:18] for path in sorted(made)}


def test_an_arm_carries_the_tags_of_its_comparison(create, monkeypatch):
    monkeypatch.setenv(ARM_VARIABLE, json.dumps({"arm": "B", "position": "2"}))
    assert create(tags={"gate": "C"}).environment["tags"] == {"gate": "C", "arm": "B", "position": "2"}


def test_results_say_which_machine_and_versions_made_them(create):
    about = create().environment
    assert about["machine"]["digest"]
    assert about["versions"]["mlx"]
    assert isinstance(about["dirty"], bool)


def test_a_full_disk_is_told_as_such_and_leaves_nothing_half_written(create, monkeypatch):
    folder = create()

    before = sorted(folder.path.iterdir())
    monkeypatch.setattr(Path, "write_bytes", lambda path, content: full_disk(path))
    with pytest.raises(OSError, match="No space left") as told, folder:
        folder.finish()
    assert told.value.errno == errno.ENOSPC
    assert sorted(folder.path.iterdir()) == before


def full_disk(path):
    path.touch()
    raise OSError(errno.ENOSPC, "No space left on device", str(path))
