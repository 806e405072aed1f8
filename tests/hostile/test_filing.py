"""MLflow's store survives what runs survive: filing that is killed, doubled, locked, damaged or without a server."""

import contextlib
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
import threading
import time

import pytest

from tests.tracking.test_tracking import content, make_run
from workbench.cli.track import file_results
from workbench.errors import UnmetPrerequisite
from workbench.schema import list_runs
from workbench.schema.results import damaged_runs
from workbench.tracking import Store, locks, store, track

pytestmark = pytest.mark.filterwarnings("ignore")


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


def statuses(root):
    with sqlite3.connect(root / "mlflow" / "mlflow.db") as store:
        return store.execute("select status from runs where lifecycle_stage = 'active'").fetchall()


def test_killed_processes_and_three_at_once_leave_each_run_filed_once(root):
    command = [sys.executable, "-m", "tests.hostile.filing_processes", str(root)]
    environment = os.environ | store.QUIET | {"PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert json.loads(ended.stdout) == [-signal.SIGKILL] * 3 + [0] * 3, ended.stderr
    assert "deleted 1 half-filed and 0 duplicate runs" in ended.stderr
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
    assert "deleted 0 half-filed and 2 duplicate runs" in capsys.readouterr().err
    assert len(statuses(root)) == 2
    assert content(root).keys() == expected.keys()
    assert children(root) == {place: run["tags"].get("mlflow.parentRunId") for place, run in expected.items()}


def test_a_half_filed_run_whose_folder_is_gone_is_deleted(root, capsys):
    track(root)
    client = Store(root).client
    client.create_run("0", tags={"folder": "generate/gone", "result_digest": "x"})
    assert track(root) == []
    assert "deleted 1 half-filed and 0 duplicate runs" in capsys.readouterr().err
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
    holds = f"from pathlib import Path\nfrom workbench.tracking import locks\nwith locks.filing(Path({str(root)!r})):"
    with subprocess.Popen([sys.executable, "-c", f"{holds} print('held', flush=True), input()"], stdin=-1, stdout=-1) as other:
        assert other.stdout.readline() == b"held\n"
        other.kill()
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


def closed_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@contextlib.contextmanager
def server_that(answers):
    """Address of a server that passes each connection to `answers`; its connections stay open until the end."""
    with socket.create_server(("127.0.0.1", 0)) as server, contextlib.ExitStack() as connections:

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    connection = connections.enter_context(server.accept()[0])
                    threading.Thread(target=answers, args=(connection,), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        # close() alone would leave accept() waiting
        server.shutdown(socket.SHUT_RDWR)


def nothing(_connection):
    """Never answers."""


def a_byte_at_a_time(connection):
    """Begins an answer that never ends; each byte comes in time."""
    with contextlib.suppress(OSError):
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        while True:
            connection.sendall(b" ")
            time.sleep(0.1)


def an_error(connection):
    """Answers as a server that is none of MLflow's."""
    connection.recv(1 << 16)
    connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    connection.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("answers", [nothing, a_byte_at_a_time])
def test_a_server_that_does_not_answer_is_given_up(answers, root, end, monkeypatch, capsys):
    monkeypatch.setattr(store, "_ANSWER_S", 1)
    with server_that(answers) as address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        ended = end("track")
        ended.check()
        assert ended.status == 3
        assert f"{address} has not answered in 1 s" in ended.err
        file_results(root)
        assert "`workbench track` files it later" in capsys.readouterr().err


def test_a_server_of_another_kind_is_told_apart(root, end, monkeypatch):
    with server_that(an_error) as address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        ended = end("track")
    ended.check()
    assert ended.status == 2
    assert "error code 404" in ended.err
    assert "rebuild" not in ended.err


@pytest.mark.parametrize("scheme", ["http", "postgresql", "mysql+pymysql"])
def test_an_address_where_nothing_listens_is_told_at_once(scheme, root, end, monkeypatch, capsys):
    address = f"{scheme}://127.0.0.1:{closed_port()}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    for command in ("track", "track rebuild"):
        ended = end(command)
        ended.check()
        assert ended.status == 3
        assert f"no server at {address}" in ended.err
    file_results(root)
    assert "not filed in MLflow; `workbench track` files it later (no server at" in capsys.readouterr().err


def test_a_proxy_is_asked_for_addresses_behind_it(root, end, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://unknown.invalid:{closed_port()}")
    with server_that(an_error) as proxy:
        monkeypatch.setenv("http_proxy", proxy)
        ended = end("track")
    assert ended.status == 2
    assert "error code 404" in ended.err


@pytest.mark.parametrize("uri", ["sqlite:////proc/none.db", "sqlite:///{root}/text.db", "postgresql://127.0.0.1:{port}/x"])
def test_a_database_by_its_address_is_told_in_one_line(uri, root, end, monkeypatch):
    (root / "text.db").write_bytes(b"no database" * 1000)
    with server_that(nothing) as address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri.format(root=root, port=address.rpartition(":")[2]))
        ended = end("track")
    ended.check()
    assert ended.status == 2
    assert "mend this and try again" in ended.err


@pytest.mark.parametrize("uri", ["http://h:99999", "http://h:0", "http://[::1", "http://", "https://h:x", "mlruns", "ftp://h/x"])
def test_an_address_that_is_none_is_refused_before_the_run(uri, root, end, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    ended = end("track")
    assert (ended.status, "MLFLOW_TRACKING_URI is no address" in ended.err) == (2, True)


def test_a_server_keeps_runs_that_another_machine_is_filing(root, monkeypatch, capsys):
    """Two roots of results on one server: a database by its address stands for the server."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{root}/shared.db")
    # MLflow keeps the artifacts of such a database in the folder it is started in
    monkeypatch.chdir(root)
    client = Store(root).client
    [own] = [folder.path.relative_to(root).as_posix() for folder in list_runs(root)]
    theirs = client.create_run("0", tags={"folder": "generate/theirs", "result_digest": "x"}).info.run_id
    ours = client.create_run("0", tags={"folder": own, "result_digest": "x"}).info.run_id
    assert len(track(root)) == 2
    assert "deleted 1 half-filed and 0 duplicate runs" in capsys.readouterr().err
    assert client.get_run(theirs).info.lifecycle_stage == "active"
    assert client.get_run(ours).info.lifecycle_stage == "deleted"


def change_result(folder, **values):
    path = folder.path / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_a_run_that_mlflow_refuses_blocks_no_other(root, capsys):
    refused = make_run(root)
    change_result(refused, metrics={"a\nb": 1.0})
    for _ in range(2):
        track(root)
        assert f"generate/{refused.path.name} is not filed: MLflow refuses it: " in capsys.readouterr().err
        assert len(content(root)) == 2
        assert statuses(root) == [("FINISHED",)] * 2


@pytest.mark.parametrize(
    "values",
    [{"tables": {name: [{"x": 1}]}} for name in ("../x", "/x", "", "n" * 300)]
    + [{name: value} for name in ("started_unix_s", "duration_s") for value in (1e17, -1e17, "nan")],
    ids=lambda values: str(values)[:30],
)
def test_a_result_that_can_not_be_filed_is_a_damaged_one(values, tmp_path):
    folder = make_run(tmp_path)
    change_result(folder, **values)
    [(path, reason)] = damaged_runs(tmp_path)
    assert path == folder.path
    assert next(iter(values)) in reason


def test_an_interrupted_rebuild_leaves_nothing(root):
    # a rebuild was killed while it deleted the old store
    (root / "mlflow.old" / "artifacts").mkdir(parents=True)
    assert len(track(root)) == 2
    assert not (root / "mlflow.old").exists()
