"""Result folders: `runs/<kind>/<id>/{config.toml, environment.json, events.parquet, result.json, artifacts/}`.

Configuration and environment are on disk before the first read of a run; `result.json` appears last, atomically, so a
folder without one is a run that did not finish. Anything that makes results writes such a folder and `tracking` files it.
"""

import contextlib
import importlib.metadata
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import psutil
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from workbench.config import Config, read_toml
from workbench.errors import BadInput
from workbench.files import json_text, read_json_object, with_numbers, write_atomically
from workbench.hardware import machine
from workbench.progress import say
from workbench.schema.events import EventLog, chunk_folder
from workbench.schema.metrics import check_metric_names
from workbench.schema.verdicts import Verdict

RESULT_VERSION = 1
ARM_VARIABLE = "WORKBENCH_ARM"
"""Set for an arm of a comparison: JSON of the tags (parent, cohort, position, arm) that its result folder gets.

While it is set, nothing is filed in MLflow.
"""
_START_TOLERANCE_S = 5.0
_CLOCK_TOLERANCE_S = 3600.0
"""Lead of a run's date over this machine's clock from which the run counts as dated in the future."""
_SAID: set[str] = set()
"""Lines of `list_runs` that this process has printed."""
_PACKAGES = ("mlx", "numpy", "polars", "mlflow", "tokenizers", "safetensors")


def arm_tags() -> dict[str, str] | None:
    """Tags in `WORKBENCH_ARM`; None: this is no arm. Raises BadInput on anything but tags."""
    if not (text := os.environ.get(ARM_VARIABLE)):
        return None
    try:
        return TypeAdapter(dict[str, str]).validate_json(text)
    except ValidationError:
        raise BadInput(f"{ARM_VARIABLE} is for arms of comparisons, which it gives tags: unset it") from None


Seconds = Annotated[float, Field(gt=-253402300800, lt=253402300800, allow_inf_nan=False)]
"""A time of which dates (up to the year 9999) and whole milliseconds can be made."""
TableName = Annotated[str, Field(pattern=r"\A[^/\x00]{1,60}\z")]
"""A name that a file can have: filing in MLflow writes each table to a file of its name."""


class Evidence(StrEnum):
    """How a number was obtained; shown on every table, plot and run."""

    PHYSICAL = "physical"
    """A real run on a real disk at its own speed."""
    EMULATED = "emulated"
    """A real run on a disk slowed to an envelope, or with timed waits as compute."""
    SIMULATED = "simulated"
    """A run on a virtual clock."""
    TRACE = "trace"
    """Counted on a route trace."""


class Status(StrEnum):
    """State of a run folder."""

    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    ABANDONED = "abandoned"
    """The process that made the folder is gone, and the run has not finished."""


class Result(Config):
    """Content of `result.json`."""

    model_config = ConfigDict(allow_inf_nan=True, ser_json_inf_nan="constants")

    version: int = RESULT_VERSION
    """Schema version."""
    kind: str
    """generate, trace, gate_b, abba ..."""
    run_id: str
    """Name of the folder."""
    status: Status
    """How the run ended."""
    evidence: Evidence
    """physical, emulated, simulated or trace."""
    profile: str
    """mini, slice or flash-next."""
    started_unix_s: Seconds
    """Wall-clock start, seconds since 1970."""
    duration_s: Seconds
    """Wall-clock seconds."""
    config_digest: str
    """SHA-256 of the configuration."""
    tags: dict[str, str] = Field(default_factory=dict)
    """Strings to filter by: gate, arm, digests."""
    metrics: dict[str, float] = Field(default_factory=dict)
    """Values by name; names are those of the registry, `METRICS`."""
    per_token: dict[str, list[float]] = Field(default_factory=dict)
    """Series with one value per token by name; names are those of the registry."""
    verdict: Verdict | None = None
    """Verdict of a gate or comparison."""
    tables: dict[TableName, list[dict[str, Any]]] = Field(default_factory=dict)
    """Small tables for people, rows as mappings."""
    error: str | None = None
    """Why the run did not finish, one line."""

    @field_validator("tables", mode="before")
    @classmethod
    def _numbers(cls, tables: Any) -> Any:
        """Cells that are not finite are words in JSON."""
        return with_numbers(tables)


def environment(command: Sequence[str]) -> dict[str, Any]:
    """Data needed to repeat a run: command, commit, versions, machine."""
    host = machine()
    return {
        "command": list(command),
        "python": sys.version.split()[0],
        "versions": {name: version for name in _PACKAGES if (version := _version(name))},
        "workbench": _version("wavefront-workbench") or "unknown",
        "commit": _git("rev-parse", "HEAD"),
        "dirty": bool(_git("status", "--porcelain")),
        "machine": {**vars(host), "digest": host.digest},
        "pid": os.getpid(),
        "pid_started_unix_s": psutil.Process().create_time(),
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def write_json(path: Path, value: Any) -> None:
    """Writes strict JSON atomically."""
    write_atomically(path, (json_text(value, indent=1) + "\n").encode())


class _Start(BaseModel):
    """Fields of `environment.json` that every reader relies on; others may be there."""

    kind: str
    run_id: str
    profile: str
    evidence: Evidence
    config_digest: str
    started_unix_s: Seconds
    tags: dict[str, str]
    command: list[str]
    commit: str
    dirty: bool
    machine: dict[str, Any]
    pid: int


_Model = TypeVar("_Model", bound=BaseModel)


def _validate(model: type[_Model], content: dict[str, Any], path: Path) -> _Model:
    try:
        return model.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        raise BadInput(f"{path}: {'.'.join(str(part) for part in first['loc'])[:80]}: {first['msg']}") from None


class RunFolder:
    """One run on disk. Use as a context manager: an exception marks the run failed, Ctrl-C interrupted."""

    def __init__(self, path: Path) -> None:
        """Opens an existing folder; `create` makes a new one."""
        self.path = path
        self.events = EventLog(chunk_folder(path / "events.parquet"))

    @classmethod
    def create(
        cls,
        root: Path,
        kind: str,
        config: Config,
        *,
        profile: str,
        evidence: Evidence,
        command: Sequence[str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> "RunFolder":
        """Makes the folder and stores configuration, its digest and the environment before anything is read."""
        tags = {**(tags or {}), **(arm_tags() or {})}
        started = time.time()
        # milliseconds: runs of one second still sort by their start
        run_id = time.strftime("%Y%m%d-%H%M%S", time.gmtime(started)) + f"{int(started % 1 * 1000):03d}-{secrets.token_hex(2)}"
        folder = cls(root / kind / run_id)
        about = environment(sys.argv if command is None else command) | {
            "kind": kind,
            "run_id": run_id,
            "profile": profile,
            "evidence": evidence.value,
            "config_digest": config.digest,
            "started_unix_s": started,
            "tags": tags,
        }
        folder._begin(config, about)
        return folder

    def _begin(self, config: Config, about: Mapping[str, Any]) -> None:
        """Writes the files that make a folder a run; a full disk leaves no folder."""
        self.artifacts.mkdir(parents=True)
        try:
            write_atomically(self.path / "config.toml", config.to_toml().encode())
            write_json(self.path / "environment.json", about)
        except BaseException:
            shutil.rmtree(self.path, ignore_errors=True)
            raise

    @property
    def artifacts(self) -> Path:
        """Folder of figures, tables, traces."""
        return self.path / "artifacts"

    @property
    def environment(self) -> dict[str, Any]:
        """Content of `environment.json`. Raises BadInput when it is damaged."""
        path = self.path / "environment.json"
        content = read_json_object(path)
        _validate(_Start, content, path)
        return content

    @property
    def result(self) -> Result | None:
        """Content of `result.json`, or None while there is none. Raises BadInput when it is damaged or of another version."""
        path = self.path / "result.json"
        if not os.path.lexists(path):
            return None
        content = read_json_object(path, strict=False)
        if content.get("version") != RESULT_VERSION:
            raise BadInput(f"{path}: result version {content.get('version')!r:.40}, this workbench reads {RESULT_VERSION}")
        return _validate(Result, content, path)

    @property
    def damage(self) -> str:
        """Reason, in one line, why the folder can't be read; empty for a sound one."""
        try:
            read_toml(self.path / "config.toml")
            _ = self.environment, self.result
        except (BadInput, OSError) as error:
            return str(error)
        return ""

    @property
    def status(self) -> Status:
        """Status from `result.json`; without this file, running while the folder's process lives, else abandoned."""
        if (result := self.result) is not None:
            return result.status
        about = self.environment
        alive = _alive(about.get("pid", -1), about.get("pid_started_unix_s"))
        return Status.RUNNING if alive else Status.ABANDONED

    def reopen(self) -> None:
        """Makes this process the one that continues an unfinished run; an earlier `result.json` is kept as an artifact."""
        about = self.environment
        earlier = [*about.get("earlier_pids", []), about["pid"]]
        path = self.path / "result.json"
        if path.exists():
            path.replace(self.artifacts / f"result-{len(earlier)}.json")
        here = {"pid": os.getpid(), "pid_started_unix_s": psutil.Process().create_time(), "earlier_pids": earlier}
        write_json(self.path / "environment.json", about | here)

    def finish(
        self,
        *,
        status: Status = Status.FINISHED,
        metrics: Mapping[str, float] | None = None,
        per_token: Mapping[str, Sequence[float]] | None = None,
        verdict: Verdict | None = None,
        tables: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
        tags: Mapping[str, str] | None = None,
        error: str | None = None,
    ) -> Result:
        """Writes events, then `result.json`. Raises BadInput on a metric that the registry does not have."""
        check_metric_names([*(metrics or {}), *(per_token or {})])
        about = self.environment
        result = Result(
            kind=about["kind"],
            run_id=about["run_id"],
            status=status,
            evidence=about["evidence"],
            profile=about["profile"],
            started_unix_s=about["started_unix_s"],
            duration_s=time.time() - about["started_unix_s"],
            config_digest=about["config_digest"],
            tags={**about["tags"], **(tags or {})},
            metrics=dict(metrics or {}),
            per_token={name: list(values) for name, values in (per_token or {}).items()},
            verdict=verdict,
            tables={name: [dict(row) for row in rows] for name, rows in (tables or {}).items()},
            error=error,
        )
        self.events.write(self.path / "events.parquet")
        write_json(self.path / "result.json", result.model_dump(mode="json"))
        return result

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is None or self.result is not None:
            return
        status = Status.INTERRUPTED if isinstance(error, KeyboardInterrupt) else Status.FAILED
        # a disk error that failed the run may fail this write too; the run's own error is the one to report
        with contextlib.suppress(OSError):
            self.finish(status=status, error=f"{type(error).__name__}: {error}".splitlines()[0])


def _alive(pid: int, started_unix_s: float | None) -> bool:
    """Whether the process still lives; process ids are reused, so its start time must match, if it is known."""
    try:
        process = psutil.Process(pid)
        same = started_unix_s is None or abs(process.create_time() - started_unix_s) < _START_TOLERANCE_S
        return same and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, ValueError):
        return False


def list_runs(root: Path, kind: str | None = None) -> Iterator[RunFolder]:
    """Sound run folders under `root`, oldest first; folders without `environment.json` are none.

    A damaged folder is skipped, which is said once. One that is dated in the future comes first, so that it supersedes none.
    """
    return sound_runs(sorted(root.glob(f"{kind or '*'}/*/environment.json"), key=lambda path: path.parent.name))


def sound_runs(paths: Iterable[Path]) -> Iterator[RunFolder]:
    """The sound ones of the folders of these `environment.json` files, in their order, those dated in the future first."""
    folders = [RunFolder(path.parent) for path in paths]
    sound = []
    for folder in folders:
        if damage := folder.damage:
            _say_once(f"skipped a damaged run folder: {damage} (move {folder.path} away; `workbench doctor` lists them)")
        else:
            sound.append(folder)
    latest = time.time() + _CLOCK_TOLERANCE_S
    future = [folder for folder in sound if folder.environment["started_unix_s"] > latest]
    for folder in future:
        _say_once(f"{folder.path} is dated in the future: it supersedes no other run")
    return iter([*future, *(folder for folder in sound if folder not in future)])


def damaged_runs(root: Path) -> list[tuple[Path, str]]:
    """Damaged run folders under `root`, each with its reason."""
    folders = [RunFolder(path.parent) for path in sorted(root.glob("*/*/environment.json"))]
    return [(folder.path, damage) for folder in folders if (damage := folder.damage)]


def _say_once(line: str) -> None:
    if line not in _SAID:
        _SAID.add(line)
        say(line)
