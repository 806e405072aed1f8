"""Compares the resident weights of a store with its manifest, without reading an unchanged file twice.

A file that was read and had its digest is remembered, outside the store, by its size, times and inode. One that changed in any of
them is read again when the store is opened for computing.
"""

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

from workbench.errors import BadInput
from workbench.files import write_atomically
from workbench.paths import cache_folder
from workbench.progress import progress
from workbench.stores.folder import Store, check_digest
from workbench.stores.manifest import RESIDENT_NAME
from workbench.stores.regions import file_sha256
from workbench.units import NS_PER_MS, NS_PER_S

_SETTLED_NS = 2 * NS_PER_S
"""Age of a change from which a further one shows in the file's times: kernels stamp files in ticks of some milliseconds."""
_NAME = "verified.json"


def check_resident(store: Store) -> float:
    """Compares the resident weights with the manifest's digest; returns the milliseconds that it took, 0 for an unchanged file.

    Raises BadInput when they differ, or change while they are read.
    """
    path, expected = store.resident_path, store.manifest.files[RESIDENT_NAME].sha256
    known, found = _known(), _stamp(path)
    if known.get(str(path.resolve())) == [*found, expected]:
        return 0.0
    start_ns = time.monotonic_ns()
    with progress("verify resident weights", found[0]) as advance:
        check_digest(store.folder, store.manifest, RESIDENT_NAME, file_sha256(path, advance).hex())
    if _stamp(path) != found:
        raise BadInput(f"{path}: changed while it was read")
    if time.time_ns() - max(found[1:3]) > _SETTLED_NS:
        _remember(known | {str(path.resolve()): [*found, expected]})
    return (time.monotonic_ns() - start_ns) / NS_PER_MS


def _stamp(path: Path) -> list[int]:
    """Size, time of the last write, time of the last change, device and inode: a copy, a restore and a write each change one."""
    status = os.stat(path)
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_dev, status.st_ino]


def _known() -> dict[str, Any]:
    try:
        known = json.loads((cache_folder() / _NAME).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return known if isinstance(known, dict) else {}


def _remember(known: dict[str, Any]) -> None:
    # a file that can't be remembered is read again the next time
    with contextlib.suppress(OSError, BadInput):
        cache_folder().mkdir(parents=True, exist_ok=True)
        write_atomically(cache_folder() / _NAME, json.dumps(known).encode())
