"""MLflow's store survives what runs survive: filing that is killed, doubled, locked, damaged or without a server."""

import fcntl
import functools
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys

import pytest

from tests.tracking.test_tracking import content, make_run
from workbench.cli.track import file_results
from workbench.errors import BadInput, UnmetPrerequisite
from workbench.tracking import Store, locks, rebuild, track

pytestmark = pytest.mark.filterwarnings("ignore")

TRACK = "from pathlib import Path; from workbench.tracking import track; track(Path({root!r}))"
DIES_MAKING_THE_DATABASE = """
import os, signal, sqlite3
from alembic.runtime import migration
done = migration.HeadMaintainer.update_to_step
def update(self, step):
    done(self, step)
    if len(steps := globals().setdefault("steps", [])) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    steps.append(step)
migration.HeadMaintainer.update_to_step = update
"""
DIES_FILING = """
import os, signal
from mlflow import MlflowClient
MlflowClient.set_terminated = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A comparison with one arm, in a folder of results."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("WORKBENCH_TRACKING", raising=False)
    monkeypatch.setenv("WORKBENCH_RUNS", str(tmp_path))
    series = make_run(tmp_path, "abba", metrics={"e2e/decode_tps": 5.0})
    tags = {"parent": f"abba/{series.path.name}", "cohort": "c01", "position": "1", "arm": "A"}
    make_run(series.path / "arms" / "c01" / "1A" / "arm", tags=tags, metrics={"e2e/decode_tps": 10 / 3})
    return tmp_path


def start(code):
    return subprocess.Popen([sys.executable, "-c", code], env=os.environ, stderr=subprocess.PIPE, text=True)


def statuses(root):
    with sqlite3.connect(root / "mlflow" / "mlflow.db") as store:
        return store.execute("select status from runs where lifecycle_stage = 'active'").fetchall()


def test_killed_processes_and_three_at_once_leave_each_run_filed_once(root):
    filing = TRACK.format(root=str(root))
    for deadly in (DIES_MAKING_THE_DATABASE, DIES_FILING):
        killed = start(deadly + filing)
        killed.communicate()
        assert killed.returncode == -signal.SIGKILL
    assert statuses(root) == [("RUNNING",)]
    together = [start(filing) for _ in range(3)]
    said = [process.communicate()[1] for process in together]
    assert [process.returncode for process in together] == [0, 0, 0], said
    assert sum("0 duplicate runs deleted, 1 half-filed runs are filed again" in each for each in said) == 1
    assert statuses(root) == [("FINISHED",)] * 2
    assert len(content(root)) == 2
    assert track(root) == []


class KilledError(BaseException):
    pass


class DyingClient:
    """MLflow's client, until its call of a given number; a call that ended is in the database, as when a process is killed."""

    def __init__(self, client, num_calls):
        self._client, self.left = client, num_calls

    def __getattr__(self, name):
        if not self.left:
            raise KilledError
        self.left -= 1
        return getattr(self._client, name)


def children(root):
    """Folder of the parent of each active run."""
    return {place: run["tags"].get("mlflow.parentRunId") for place, run in content(root).items()}


def test_filing_that_ends_at_any_call_is_mended(root, capsys):
    track(root)
    expected, parents = content(root), children(root)
    [series] = [place for place in expected if place.count("/") == 1]
    result = root / series / "result.json"
    num_calls = 0
    while True:
        # changed, so that it is filed again
        result.write_text(json.dumps(json.loads(result.read_text()) | {"duration_s": 1.0 + num_calls}))
        store = Store(root)
        dying = vars(store)["client"] = DyingClient(store.client, num_calls)
        try:
            track(root, store)
        except KilledError:
            track(root)
        after = content(root)
        assert children(root) == parents
        assert len(statuses(root)) == len(after) == len(expected)
        assert {"RUNNING"}.isdisjoint(status for (status,) in statuses(root))
        for place, run in after.items():
            assert {run[key] == expected[place][key] for key in ("name", "params", "metrics", "files")} == {True}
        num_calls += 1
        if dying.left:
            break
    assert num_calls > 8


@pytest.mark.parametrize("damage", [b"base = '", b"\xff", b"a = " + b"[" * 10_000])
def test_a_folder_whose_settings_are_damaged_is_named_and_left_out(damage, root, capsys):
    [series] = root.glob("abba/*")
    (series / "artifacts" / "plan-A.toml").write_bytes(damage)
    other = make_run(root)
    filed = [each.place for each in track(root)]
    assert f"generate/{other.path.name}" in filed
    assert len(filed) == 2
    assert f"is not filed: {series / 'artifacts' / 'plan-A.toml'}" in capsys.readouterr().err
    assert len(statuses(root)) == 2


def test_runs_that_were_filed_twice_are_deleted(root, capsys):
    track(root)
    expected = content(root)
    with sqlite3.connect(root / "mlflow" / "mlflow.db") as store:
        columns = [name for _, name, *_ in store.execute("pragma table_info(runs)")]
        others = ", ".join(name for name in columns if name != "run_uuid")
        for table, names in (("runs", others), ("tags", "key, value"), ("params", "key, value, experiment_id")):
            try:
                store.execute(f"insert into {table} (run_uuid, {names}) select run_uuid || 'x', {names} from {table}")
            except sqlite3.OperationalError:
                store.execute(f"insert into {table} (run_uuid, key, value) select run_uuid || 'x', key, value from {table}")
    assert len(statuses(root)) == 4
    assert track(root) == []
    assert "2 duplicate runs deleted, 0 half-filed" in capsys.readouterr().err
    assert len(statuses(root)) == 2
    assert content(root).keys() == expected.keys()
    assert children(root) == {place: run["tags"].get("mlflow.parentRunId") for place, run in expected.items()}


def test_a_half_filed_run_whose_folder_is_gone_is_deleted(root, capsys):
    track(root)
    client = Store(root).client
    client.create_run("0", tags={"folder": "generate/gone", "result_digest": "x"})
    assert track(root) == []
    assert "1 duplicate runs deleted" in capsys.readouterr().err
    assert ("RUNNING",) not in statuses(root)


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def drop(table):
    def change(path):
        with sqlite3.connect(path) as store:
            store.execute(f"drop table {table}")

    return change


def lock(path):
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("begin exclusive")
    return holder


def turn_into(content):
    return lambda path: path.write_bytes(content)


def make_older(path):
    with sqlite3.connect(path) as store:
        store.execute("update alembic_version set version_num = '90e64c465722'")


DAMAGES = {
    "text": turn_into(b"no database" * 1000),
    "cut": truncate,
    "no runs": drop("runs"),
    "no tags": drop("tags"),
    "no version": drop("alembic_version"),
    "older": make_older,
    "folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.fixture(scope="module")
def sound_store(tmp_path_factory):
    """An empty store of MLflow."""
    folder = tmp_path_factory.mktemp("sound")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        _ = Store(folder).client
    return folder / "mlflow"


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_database_ends_in_one_line_that_says_how_to_mend_it(damage, root, sound_store, end, capsys):
    shutil.copytree(sound_store, root / "mlflow")
    DAMAGES[damage](root / "mlflow" / "mlflow.db")
    for command in ("track", "ui --port 47011"):
        ended = end(command)
        ended.check()
        assert ended.status == 2
        assert "`workbench track rebuild`" in ended.err.strip().splitlines()[-1]
    file_results(root)
    assert capsys.readouterr().err.splitlines()[-1].startswith("not filed in MLflow; ")
    ended = end("doctor")
    assert "workbench track rebuild" in ended.out


@pytest.mark.parametrize("left", ["empty", "half made"])
def test_a_database_that_was_not_made_is_made_anew(left, root, end):
    (root / "mlflow").mkdir()
    (root / "mlflow" / "mlflow.db").write_bytes(b"" if left == "empty" else b"SQLite format 3\0")
    if left == "half made":
        (root / "mlflow" / "mlflow.db.unmade").touch()
    assert "no store yet" in end("doctor").out
    assert end("track").status == 0
    assert len(content(root)) == 2


def test_a_database_that_another_program_locks_is_no_damaged_one(root, end, monkeypatch):
    track(root)
    make_run(root)
    monkeypatch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, timeout=0.1))
    holder = lock(root / "mlflow" / "mlflow.db")
    ended = end("track")
    holder.close()
    assert ended.status == 2
    assert "locked" in ended.err
    assert "rebuild" not in ended.err
    assert end("track").status == 0
    assert len(content(root)) == 3


def test_a_path_that_sqlite_can_not_open_is_told_at_once(root, end, monkeypatch):
    long = root.joinpath(*3 * ["n" * 200])
    shutil.copytree(root / "abba", long / "abba")
    monkeypatch.setenv("WORKBENCH_RUNS", str(long))
    ended = end("track")
    assert ended.status == 2
    assert "unable to open database file" in ended.err


def test_one_process_files_at_a_time(root, monkeypatch):
    with (root / ".mlflow-filing.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        monkeypatch.setattr(locks, "_PATIENCE_S", 0)
        with pytest.raises(UnmetPrerequisite, match=r"filing\.lock is locked"):
            track(root)
    monkeypatch.setattr(locks, "_PATIENCE_S", 60)
    waits = start(
        f"from pathlib import Path\nfrom workbench.tracking import locks\nwith locks.filing(Path({str(root)!r})): input()"
    )
    waits.kill()
    waits.communicate()
    with locks.filing(root):
        pass


def test_no_rebuild_while_the_pages_are_open(root, end):
    show = f"import os; from pathlib import Path; from workbench.tracking import show; show(Path({str(root)!r})); "
    pages = subprocess.Popen(
        [sys.executable, "-c", show + "os.execvp('sh', ['sh', '-c', 'echo open; read line'])"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert pages.stdout.readline() == "open\n"
    ended = end("track rebuild")
    assert ended.status == 3
    assert "end `workbench ui` first" in ended.err
    pages.communicate("end\n")
    with locks.not_shown(root), pytest.raises(UnmetPrerequisite, match="rebuild"):
        locks.show(root)


def test_a_server_that_does_not_answer_is_given_up(root, end, monkeypatch, capsys):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        with pytest.raises(BadInput, match=address):
            track(root)
    ended = end("track")
    assert ended.status == 3
    assert f"no server at {address}" in ended.err
    file_results(root)
    assert "not filed in MLflow; `workbench track` files it later (no server at" in capsys.readouterr().err
    with pytest.raises(UnmetPrerequisite):
        rebuild(root)
