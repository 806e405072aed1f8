"""Locks beside the local store: one process files at a time, and none rebuilds the store while MLflow's pages show it.

The kernel ends a lock with the process that holds it, however the process ended.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from workbench.errors import UnmetPrerequisite
from workbench.progress import progress

_FILING = ".mlflow-filing.lock"
_SHOWN = ".mlflow-shown.lock"
_PATIENCE_S = 120
_LOOK_EVERY_S = 0.1


@contextmanager
def filing(root: Path) -> Iterator[None]:
    """Held while runs under `root` are filed. Waits while another process files; UnmetPrerequisite after two minutes."""
    with _opened(root / _FILING) as file:
        if not _take(file, fcntl.LOCK_EX):
            _wait(file, root / _FILING)
        yield


def _wait(file: int, path: Path) -> None:
    with progress("waiting for another process that files runs in MLflow, s", _PATIENCE_S) as advance:
        for _ in range(_PATIENCE_S):
            for _ in range(round(1 / _LOOK_EVERY_S)):
                if _take(file, fcntl.LOCK_EX):
                    return
                time.sleep(_LOOK_EVERY_S)
            advance(1)
    raise UnmetPrerequisite(f"another process has filed runs for {_PATIENCE_S} s ({path} is locked): wait for it or end it")


@contextmanager
def not_shown(root: Path) -> Iterator[None]:
    """Held while the store is deleted and made anew. Raises UnmetPrerequisite while `workbench ui` shows it."""
    with _opened(root / _SHOWN) as file:
        if not _take(file, fcntl.LOCK_EX):
            raise UnmetPrerequisite("MLflow's pages are open and would show the deleted store: end `workbench ui` first")
        yield


def show(root: Path) -> None:
    """Marks the store as shown, as long as this process, or the program that replaces it, runs.

    Raises UnmetPrerequisite while the store is made anew.
    """
    file = os.open(root / _SHOWN, os.O_RDWR | os.O_CREAT, 0o644)
    if not _take(file, fcntl.LOCK_SH):
        os.close(file)
        raise UnmetPrerequisite("`workbench track rebuild` is making the store anew: wait for its end")
    os.set_inheritable(file, True)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        yield file
    finally:
        os.close(file)


def _take(file: int, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
