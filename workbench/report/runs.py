"""Everything under `runs/`, read once."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from workbench.schema import Result, RunFolder, Status, list_runs


@dataclass(frozen=True)
class Run:
    """One result folder as it was read."""

    folder: RunFolder
    about: dict[str, Any]
    """Content of `environment.json`."""
    result: Result | None
    """Content of `result.json`; None while there is none."""

    @cached_property
    def status(self) -> Status:
        """Of the folder."""
        return self.result.status if self.result else self.folder.status

    @property
    def place(self) -> str:
        """`<kind>/<id>`."""
        return f"{self.about['kind']}/{self.about['run_id']}"

    @property
    def tags(self) -> dict[str, str]:
        """Of the result, or before there is one, of its start."""
        return self.result.tags if self.result else self.about["tags"]


def read_runs(root: Path) -> list[Run]:
    """All runs, oldest first; arms of a comparison belong to it and are not among them."""
    return [Run(folder, folder.environment, folder.result) for folder in list_runs(root)]


def newest(runs: Sequence[Run], kind: str) -> list[Run]:
    """Finished runs of a kind, newest first."""
    return [run for run in reversed(runs) if run.about["kind"] == kind and run.status is Status.FINISHED]
