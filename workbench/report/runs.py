"""Everything under `runs/`, read once."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from workbench.schema import Result, RunFolder, Status, list_runs
from workbench.schema.results import damaged_runs


@dataclass(frozen=True)
class Run:
    """One result folder, read once."""

    folder: RunFolder
    about: dict[str, Any]
    """Content of `environment.json`."""
    result: Result | None
    """Content of `result.json`; None while there is none."""
    problem: str = ""
    """Reason why the folder can't be read."""

    @cached_property
    def status(self) -> Status:
        """Status of the folder."""
        if self.problem:
            return Status.FAILED
        return self.result.status if self.result else self.folder.status

    @property
    def place(self) -> str:
        """`<kind>/<id>`."""
        return f"{self.about['kind']}/{self.about['run_id']}"

    @property
    def why(self) -> str | None:
        """Error of the run, one line."""
        return self.problem or (self.result.error if self.result else None)

    @property
    def tags(self) -> dict[str, str]:
        """Tags of the result, or without a result those of the start."""
        return self.result.tags if self.result else self.about["tags"]


def read_runs(root: Path) -> list[Run]:
    """All runs, damaged ones first, then oldest first; arms of a comparison belong to it and are not among them."""
    sound = [Run(folder, folder.environment, folder.result) for folder in list_runs(root)]
    return [*(_damaged(path, reason) for path, reason in damaged_runs(root)), *sound]


def _damaged(path: Path, reason: str) -> Run:
    about = {"kind": path.parent.name, "run_id": path.name, "profile": "", "evidence": "", "started_unix_s": 0.0, "tags": {}}
    return Run(RunFolder(path), about, None, problem=f"it can't be read: {reason}")


def newest(runs: Sequence[Run], kind: str) -> list[Run]:
    """Finished runs of a kind, newest first."""
    return [run for run in reversed(runs) if run.about["kind"] == kind and run.status is Status.FINISHED]
