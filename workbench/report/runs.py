"""Everything under `runs/`, read once."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from workbench.schema import Result, RunFolder, Status, list_runs


@dataclass(frozen=True)
class Run:
    """One result folder, read once."""

    folder: RunFolder
    about: dict[str, Any]
    """Content of `environment.json`."""
    result: Result | None
    """Content of `result.json`; None while there is none."""
    problem: str = ""
    """Reason why `result.json` can't be read."""

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
    """All runs, oldest first; arms of a comparison belong to it and are not among them. A damaged one harms no other."""
    return [run for folder in list_runs(root) if (run := _read(folder))]


def _read(folder: RunFolder) -> Run | None:
    try:
        about = folder.environment
    except ValueError:
        return None
    try:
        return Run(folder, about, folder.result)
    except (ValueError, OSError) as error:
        return Run(folder, about, None, problem=f"its result can't be read: {str(error).splitlines()[0]}")


def newest(runs: Sequence[Run], kind: str) -> list[Run]:
    """Finished runs of a kind, newest first."""
    return [run for run in reversed(runs) if run.about["kind"] == kind and run.status is Status.FINISHED]
