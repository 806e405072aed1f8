"""MLflow's store: a local sqlite store under the result folders, or the server that `MLFLOW_TRACKING_URI` names."""

import json
import os
import shutil
import socket
import sqlite3
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Thread
from typing import Any, Self
from urllib.parse import quote, urlsplit
from urllib.request import getproxies

from workbench.errors import BadInput, UnmetPrerequisite, shortened
from workbench.progress import progress

PORT = 5000
_PAGE = 1000
FOLDER_TAG = "folder"
"""Name of the tag with the place of the result folder that a run was filed from, `<kind>/<id>`."""
DIGEST_TAG = "result_digest"
"""Name of the tag with the digest of the folder's `result.json` at the time of filing."""
_FILED = """
SELECT runs.run_uuid, place.value, digest.value, runs.status FROM runs
JOIN tags AS place ON place.run_uuid = runs.run_uuid AND place.key = ?
LEFT JOIN tags AS digest ON digest.run_uuid = runs.run_uuid AND digest.key = ?
WHERE runs.lifecycle_stage = 'active'
"""

QUIET = {
    # 2 processes and 0.5 GiB instead of 11 and 2.9 GiB; nothing leaves the machine
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    # migrations of a new store log a page of text
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    # a client of a server prints two addresses for each run that ends
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


_IMPATIENT = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "60"}
"""A server that stops answering while runs are filed; a large artifact may take it long to store.

MLflow itself tries seven times for two minutes each.
"""
_CONNECT_S = 3
_ANSWER_S = 10
"""Seconds that a server has for its first answer, over any number of tries."""
_PORTS = {"http": 80, "https": 443, "postgresql": 5432, "mysql": 3306, "mssql": 1433}
"""Ports of addresses that name none."""
_FOREIGN = ("mlflow", "sqlalchemy", "sqlite3", "alembic", "requests", "urllib3")
"""Packages whose errors say what is wrong with a store."""

_PASSING = ("database is locked", "is full", "readonly", "unable to open")
"""Words of SQLite's errors that come from outside of the database."""


@dataclass(frozen=True, kw_only=True)
class FiledRun:
    """An MLflow run that was filed from a result folder."""

    run_id: str
    place: str
    digest: str | None
    """Digest of the folder's `result.json` when it was filed; None: its filing did not end."""

    @classmethod
    def of(cls, run_id: str, place: str, digest: str | None, status: str) -> Self:
        """A run as MLflow has it. Filing sets the run's status last: a run whose filing was killed stays RUNNING."""
        return cls(run_id=run_id, place=place, digest=None if status == "RUNNING" else digest)


_PARTS_OF_ADDRESSES = "?#%"
"""Characters in a path that make MLflow open another file than the path names."""


@dataclass(frozen=True)
class Store:
    """MLflow's store for the result folders under `root`."""

    root: Path

    @property
    def folder(self) -> Path:
        """Database and artifacts of the local store."""
        return self.root.resolve() / "mlflow"

    @property
    def is_local(self) -> bool:
        """True unless `MLFLOW_TRACKING_URI` names a server."""
        return not os.environ.get("MLFLOW_TRACKING_URI")

    @property
    def uri(self) -> str:
        """`MLFLOW_TRACKING_URI`, else the local store; absolute, so that a notebook's folder makes no difference."""
        return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{self.folder / 'mlflow.db'}"

    @property
    def server_environment(self) -> dict[str, str]:
        """Environment variables for a local server."""
        return QUIET

    def server_command(self, port: int) -> list[str]:
        """Command line of a server on 127.0.0.1 with one worker."""
        place = (self.folder / "artifacts").as_uri()
        server = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
        return [*server, "--backend-store-uri", self.uri, "--default-artifact-root", place]

    @cached_property
    def client(self) -> Any:
        """MLflow's client; the first use imports it and makes the database."""
        for name, value in (QUIET | _IMPATIENT).items():
            os.environ.setdefault(name, value)
        with self.errors():
            if self.is_local:
                self._check_name()
                return self._open_database()
            self._check_address()
            client = _mlflow_client(self.uri)
            self._wait_for_answer(client)
            return client

    def _open_database(self) -> Any:
        """MLflow's client of the local database. A database whose making was interrupted is made anew."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.is_made:
            self._database.unlink(missing_ok=True)
            self._unmade.touch()
            shutil.rmtree(self._old, ignore_errors=True)
        _check_database(self._database)
        client = _mlflow_client(self.uri)
        self._unmade.unlink(missing_ok=True)
        return client

    @property
    def _database(self) -> Path:
        return self.folder / "mlflow.db"

    @property
    def _old(self) -> Path:
        """The folder of a store that is being deleted; a killed process leaves it."""
        return self.folder.with_name("mlflow.old")

    @property
    def _unmade(self) -> Path:
        """A file that is there while MLflow makes the database."""
        return self.folder / "mlflow.db.unmade"

    @property
    def is_made(self) -> bool:
        """True when there is a local database that was made to the end."""
        return self._database.exists() and self._database.stat().st_size > 0 and not self._unmade.exists()

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turns errors of MLflow, of its database and of its server into BadInput with the address of the store."""
        try:
            yield
        except Exception as error:
            # a database's driver that is not installed is an ImportError
            if type(error).__module__.partition(".")[0] not in _FOREIGN and not isinstance(error, ImportError):
                raise
            reason = shortened(" ".join(str(error).split()) or type(error).__name__, 200)
            is_damaged = self.is_local and not any(word in reason for word in _PASSING)
            fix = "`workbench track rebuild` makes it anew from the result folders" if is_damaged else "mend this and try again"
            raise BadInput(f"MLflow's store {self.uri}: {reason}; {fix}") from None

    def _check_address(self) -> None:
        """Raises within seconds when nothing listens at the address or its database can't be opened; MLflow tries for minutes."""
        scheme, _, path = self.uri.partition(":///")
        if scheme.startswith("sqlite"):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            _check_database(Path(path))
        elif address := _listener(self.uri):
            try:
                with progress(f"connecting to {self.uri}"):
                    socket.create_connection(address, timeout=_CONNECT_S).close()
            except OSError as error:
                raise UnmetPrerequisite(f"no server at {self.uri} ({error}): start it, or unset MLFLOW_TRACKING_URI") from None

    def _wait_for_answer(self, client: Any) -> None:
        """Raises UnmetPrerequisite when a server that accepts connections answers nothing for seconds.

        The deadline is a thread's, since a server that sends its answer byte by byte keeps to every timeout of a socket.
        Databases have none: MLflow may be making their tables.
        """
        if not self.uri.startswith(("http", "databricks")):
            return
        answer: Future[None] = Future()
        Thread(target=_ask, args=(client, answer), daemon=True).start()
        with progress(f"waiting for an answer of {self.uri}, s", _ANSWER_S) as advance:
            for _ in range(_ANSWER_S):
                with suppress(TimeoutError):
                    return answer.result(1)
                advance(1)
        raise UnmetPrerequisite(f"{self.uri} has not answered in {_ANSWER_S} s: start it anew, or unset MLFLOW_TRACKING_URI")

    def _check_name(self) -> None:
        if odd := sorted(set(str(self.folder)) & set(_PARTS_OF_ADDRESSES)):
            raise BadInput(
                f"MLflow can't keep its store in {self.folder}: it takes {' and '.join(odd)} for parts of an address "
                "(set WORKBENCH_RUNS to another folder)"
            )

    def experiment(self, name: str, note: str) -> str:
        """Id of the experiment, made with `note` as its description if it is new."""
        if (found := self.client.get_experiment_by_name(name)) is not None:
            return str(found.experiment_id)
        tags = {"mlflow.experimentKind": "custom_model_development", "mlflow.note.content": note}
        place = (self.folder / "artifacts" / name.replace(" ", "-")).as_uri() if self.is_local else None
        return str(self.client.create_experiment(name, artifact_location=place, tags=tags))

    def filed_runs(self) -> Iterator[FiledRun]:
        """Every run that was filed from a result folder."""
        return self._runs_in_database() if self.is_local else self._runs_on_server()

    def _runs_in_database(self) -> Iterator[FiledRun]:
        """Reads the database directly: MLflow's search loads every metric of every run, seven seconds for 1000 runs."""
        if not self.is_made:
            return
        with closing(sqlite3.connect(f"{self._database.as_uri()}?mode=ro", uri=True)) as database:
            for found in database.execute(_FILED, (FOLDER_TAG, DIGEST_TAG)):
                yield FiledRun.of(*found)

    def _runs_on_server(self) -> Iterator[FiledRun]:
        experiments = [experiment.experiment_id for experiment in self.client.search_experiments()]
        token = None
        while experiments:
            page = self.client.search_runs(experiments, max_results=_PAGE, page_token=token)
            for run in page:
                tags = run.data.tags
                if FOLDER_TAG in tags:
                    yield FiledRun.of(run.info.run_id, tags[FOLDER_TAG], tags.get(DIGEST_TAG), run.info.status)
            token = page.token
            if not token:
                return

    def clear(self) -> None:
        """Deletes the local store, or on a server every filed run.

        Raises RuntimeError when this process has already imported mlflow, which keeps the local database open.
        """
        if not self.is_local:
            for run in list(self.filed_runs()):
                self.client.delete_run(run.run_id)
            return
        if "mlflow" in sys.modules:
            raise RuntimeError("MLflow keeps its database open for the life of a process: clear the store in a fresh one")
        shutil.rmtree(self._old, ignore_errors=True)
        # renamed first: a store of which a killed process has deleted a part would look whole
        with suppress(FileNotFoundError):
            self.folder.rename(self._old)
        shutil.rmtree(self._old, ignore_errors=True)


def _check_database(path: Path) -> None:
    """Raises sqlite3's error on a file that is no database or can't be opened: MLflow would try for minutes."""
    with closing(sqlite3.connect(path)) as database:
        database.execute("pragma schema_version")


def _listener(uri: str) -> tuple[str, int] | None:
    """Host and port that an address names; None when MLflow connects to another one, such as a proxy."""
    try:
        address = urlsplit(uri)
        port = address.port or _PORTS.get(address.scheme.partition("+")[0])
    except ValueError:
        return None
    is_proxied = address.scheme.startswith("http") and not {address.scheme, "all"}.isdisjoint(getproxies())
    return (address.hostname, port) if address.hostname and port and not is_proxied else None


def _ask(client: Any, answer: Future[None]) -> None:
    """Ends `answer` with the end of a small request."""
    try:
        client.search_experiments(max_results=1)
    except BaseException as error:
        answer.set_exception(error)
    else:
        answer.set_result(None)


def _mlflow_client(uri: str) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri)


def compare_link(experiment_id: str, run_ids: Sequence[str], environ: Mapping[str, str] = os.environ) -> str:
    """Address of the page that shows runs side by side, in the order given; `runs` must be the address's first parameter."""
    runs, experiments = (quote(json.dumps(ids)) for ids in (list(run_ids), [experiment_id]))
    return f"{_base(environ)}/#/compare-runs?runs={runs}&experiments={experiments}&workflowType=machine_learning"


def curves_link(experiment_id: str, series: str, cohort: str, environ: Mapping[str, str] = os.environ) -> str:
    """Address of the charts of one cohort's arms, in their order and colours.

    Ordered by name, runs are not folded under their comparison, which would hide them and their curves.
    """
    chosen = quote(f"tags.parent = '{series}' and tags.cohort = '{cohort}'")
    order = f"orderByKey={quote('tags.`mlflow.runName`')}&orderByAsc=true"
    page = f"{_base(environ)}/#/experiments/{experiment_id}/runs"
    return f"{page}?workflowType=machine_learning&compareRunsMode=CHART&{order}&searchFilter={chosen}"


def _base(environ: Mapping[str, str]) -> str:
    server = environ.get("MLFLOW_TRACKING_URI", "")
    return server if server.startswith("http") else f"http://127.0.0.1:{PORT}"


def run_link(experiment_id: str, run_id: str, environ: Mapping[str, str] = os.environ) -> str:
    """Address of a run's page; without `workflowType` it would open in a mode for language-model traces."""
    return f"{_base(environ)}/#/experiments/{experiment_id}/runs/{run_id}?workflowType=machine_learning"
