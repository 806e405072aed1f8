"""Gate A's probe file: incompressible, on the disk of the profile's store, never there in part, and removed afterwards."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from workbench.errors import BadInput, UnmetPrerequisite
from workbench.files import naming
from workbench.hardware import drop_from_page_cache, free_disk_bytes
from workbench.progress import progress
from workbench.units import MIB, format_bytes

FILE_NAME = "storage-probe.bin"
_CHUNK_BYTES = 8 * MIB
_RESERVE_BYTES = 512 * MIB
"""Bytes of the disk that stay free beside the probe file."""


@contextmanager
def probe_file(folder: Path, num_bytes: int, *, seed: int, keep: bool = False) -> Iterator[Path]:
    """Makes the probe file (or reuses a kept one of the same size and seed) and removes it at the end, after an error too.

    Args:
        folder: folder of the file; made where it is missing.
        num_bytes: a multiple of 8 MiB.
        seed: seed of the content.
        keep: leave the file for the next run.

    Raises UnmetPrerequisite without room for the file, BadInput while another run uses it or when it can't be written.
    """
    path = folder / FILE_NAME
    with _locked(path.with_suffix(".lock")):
        if not _fits(path, num_bytes, seed):
            path.unlink(missing_ok=True)
            _check_room(folder, num_bytes)
            _write(path, num_bytes, seed)
        try:
            yield path
        finally:
            if not keep:
                path.unlink(missing_ok=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise BadInput(f"{path.parent}: no probe file can be made there ({error.strerror})") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise BadInput(f"{path.parent}: another run is measuring this disk; wait for it") from None
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _check_room(folder: Path, num_bytes: int) -> None:
    free = free_disk_bytes(folder)
    if free < num_bytes + _RESERVE_BYTES:
        raise UnmetPrerequisite(
            f"{folder} has {format_bytes(free)} free; the probe file needs {format_bytes(num_bytes + _RESERVE_BYTES)}: "
            "free some, or make it smaller (file_bytes)"
        )


def _chunk(base: np.ndarray, number: int) -> np.ndarray:
    """Random bytes of chunk `number`: the base with every word changed, differently in each chunk."""
    return base ^ np.random.default_rng(number).integers(1, 2**63, dtype=np.uint64)


def _base(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**64, size=_CHUNK_BYTES // 8, dtype=np.uint64)


def _write(path: Path, num_bytes: int, seed: int) -> None:
    """Writes the probe file under a temporary name, and renames it when all bytes are on the disk."""
    if num_bytes % _CHUNK_BYTES:
        raise BadInput(f"file_bytes={num_bytes}: must be a multiple of {format_bytes(_CHUNK_BYTES)}")
    part = path.with_suffix(".part")
    base, count = _base(seed), num_bytes // _CHUNK_BYTES
    try:
        shown = progress("writing the probe file, MiB", num_bytes // MIB)
        with naming(path), shown as advance, part.open("wb", buffering=0) as file:
            for number in range(count):
                file.write(_chunk(base, number).data)
                advance(_CHUNK_BYTES // MIB)
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    drop_from_page_cache(path)


def _fits(path: Path, num_bytes: int, seed: int) -> bool:
    """True when a file that an earlier run kept has the right size and the right first and last chunk."""
    if not path.is_file() or path.stat().st_size != num_bytes or num_bytes % _CHUNK_BYTES:
        return False
    base = _base(seed)
    with path.open("rb") as file:
        for number in (0, num_bytes // _CHUNK_BYTES - 1):
            file.seek(number * _CHUNK_BYTES)
            if not np.array_equal(np.frombuffer(file.read(_CHUNK_BYTES), dtype=np.uint64), _chunk(base, number)):
                return False
    drop_from_page_cache(path)
    return True
