"""A store folder under construction: temporary names, a journal, resumption, atomic installation.

A file is made of a head and pieces. Each piece is written to `NAME.part`, synced, and recorded in the journal with the running
SHA-256 of all pieces so far; the head follows when all are known, then the rename. `manifest.json` is renamed last, so a folder
is a store or it is not. After any interruption the same command reads what the journal records, checks it, and continues.
"""

import fcntl
import hashlib
import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from workbench.errors import BadInput, UnmetPrerequisite
from workbench.files import naming
from workbench.hardware import free_disk_bytes
from workbench.stores.manifest import MANIFEST_NAME
from workbench.units import MIB, format_bytes

JOURNAL_NAME = "journal.part"
PIECE_BYTES = 16 * MIB
"""Pieces are at most this large, or one record; three are in memory at once."""
_SPARE_BYTES = 16 * MIB
_PIECES_AHEAD = 1


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A range of bytes that is made, written and synced together."""

    num_bytes: int
    make: Callable[[], np.ndarray]
    """Returns the bytes, uint8 `[num_bytes]`; runs in a thread of its own, one piece at a time."""
    observe: Callable[[np.ndarray], None] = lambda content: None
    """Called with the bytes, in order, whether newly made or read back."""


@dataclass(frozen=True, kw_only=True)
class FilePlan:
    """A file that is to be written."""

    name: str
    head_bytes: int
    pieces: tuple[Piece, ...]
    make_head: Callable[[bytes], bytes] = lambda body_sha256: b""
    """Makes the head from the SHA-256 of all pieces, once they are written."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole file."""
        return self.head_bytes + sum(piece.num_bytes for piece in self.pieces)


class Workspace:
    """Writes the files of one store. Use as a context manager: it holds a lock on the folder."""

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        """Resumes an interrupted construction of the same identity, or starts a new one.

        Raises BadInput when the folder holds anything else, or when another process works on it.
        """
        self.folder = folder
        self._identity = json.loads(json.dumps(identity))
        folder.mkdir(parents=True, exist_ok=True)
        journal_path = folder / JOURNAL_NAME
        if not journal_path.exists() and (others := [path.name for path in folder.iterdir() if not _is_system(path)]):
            raise BadInput(f"{folder} holds {others[0]} but no interrupted pack: choose another folder or empty it")
        self._journal = _open_locked(journal_path)
        self._progress: dict[str, tuple[int, str]] = {}
        try:
            with naming(journal_path):
                self._load_journal()
        except BaseException:
            self._close()
            raise

    # ---- journal --------------------------------------------------------------------------------------------------

    def _load_journal(self) -> None:
        lines = os.pread(self._journal, os.fstat(self._journal).st_size, 0).split(b"\n")
        whole = lines[:-1]  # what follows the last newline was torn by an interruption
        os.ftruncate(self._journal, sum(len(line) + 1 for line in whole))
        try:
            identity, *entries = [json.loads(line) for line in whole] or [None]
            for entry in entries:
                self._progress[Path(entry["file"]).name] = (int(entry["end"]), str(entry["sha256"]))
        except (ValueError, KeyError, TypeError):
            raise BadInput(f"{self.folder / JOURNAL_NAME} is damaged: empty {self.folder} and pack again") from None
        if identity != self._identity:
            self._start_afresh()

    def _start_afresh(self) -> None:
        for name in self._progress:
            (self.folder / name).unlink(missing_ok=True)
        self._progress.clear()
        for path in self.folder.glob("*.part"):
            if path.name != JOURNAL_NAME:
                path.unlink()
        os.ftruncate(self._journal, 0)
        self._record(self._identity)

    def _record(self, entry: dict[str, Any]) -> None:
        left = json.dumps(entry).encode() + b"\n"
        while left:
            left = left[os.write(self._journal, left) :]
        sync(self._journal)

    # ---- space ----------------------------------------------------------------------------------------------------

    def check_space(self, plans: Iterable[FilePlan]) -> None:
        """Raises UnmetPrerequisite, with both figures, when the disk can't hold what is still to be written."""
        needed = _SPARE_BYTES
        for plan in plans:
            paths = [path for path in (self.folder / plan.name, self._part(plan.name)) if path.exists()]
            needed += max(0, plan.num_bytes - sum(path.stat().st_blocks * 512 for path in paths))
        if (free := free_disk_bytes(self.folder)) < needed:
            raise UnmetPrerequisite(
                f"{self.folder} needs {format_bytes(needed)}, {format_bytes(free)} are free: free some or choose another disk"
            )

    # ---- files ----------------------------------------------------------------------------------------------------

    def _part(self, name: str) -> Path:
        return self.folder / f"{name}.part"

    def write(self, plan: FilePlan, advance: Callable[[int], None]) -> bytes:
        """Writes a file, or the missing part of it, and returns the SHA-256 of its pieces.

        Raises BadInput when the bytes on disk differ from the journal's digest.
        """
        final = self.folder / plan.name
        path = final if final.exists() else self._part(plan.name)
        with naming(path), _opened(path, os.O_RDWR) as file:
            digest, remaining = self._read_back(file, path, plan, advance)
            if remaining and path == final:
                raise _changed(path)
            self._append(file, plan, remaining, digest, advance)
            _write_all(file, plan.make_head(digest.digest()), 0)
            sync(file)
        if path != final:
            path.rename(final)
        return digest.digest()

    def _read_back(
        self, file: int, path: Path, plan: FilePlan, advance: Callable[[int], None]
    ) -> tuple["hashlib._Hash", deque[Piece]]:
        """Digest of the pieces that the journal records, and the pieces that remain."""
        end, expected = self._progress.get(plan.name, (plan.head_bytes, None))
        digest, position, remaining = hashlib.sha256(), plan.head_bytes, deque(plan.pieces)
        while remaining and position + remaining[0].num_bytes <= end:
            piece = remaining.popleft()
            content = os.pread(file, piece.num_bytes, position)
            if len(content) != piece.num_bytes:
                raise _changed(path)
            _absorb(piece, np.frombuffer(content, np.uint8), digest)
            position += piece.num_bytes
            advance(piece.num_bytes)
        if expected not in (None, digest.hexdigest()):
            raise _changed(path)
        return digest, remaining

    def _append(
        self, file: int, plan: FilePlan, pieces: deque[Piece], digest: "hashlib._Hash", advance: Callable[[int], None]
    ) -> None:
        position = plan.num_bytes - sum(piece.num_bytes for piece in pieces)
        os.ftruncate(file, position)
        with ThreadPoolExecutor(max_workers=1) as hasher:
            for piece, content in _make_ahead(pieces):
                absorbed = hasher.submit(_absorb, piece, content, digest)
                _write_all(file, content.data, position)
                sync(file)
                absorbed.result()
                position += piece.num_bytes
                self._record({"file": plan.name, "end": position, "sha256": digest.hexdigest()})
                advance(piece.num_bytes)

    def put(self, name: str, content: bytes) -> None:
        """Writes a small file."""
        part = self._part(name)
        with naming(part), _opened(part, os.O_WRONLY | os.O_TRUNC) as file:
            self._record({"file": name, "end": len(content), "sha256": hashlib.sha256(content).hexdigest()})
            _write_all(file, content, 0)
            sync(file)
        part.rename(self.folder / name)

    def install(self, manifest: bytes) -> None:
        """Makes the folder a store: syncs its names, writes the manifest, then removes the journal."""
        sync_folder(self.folder)
        self.put(MANIFEST_NAME, manifest)
        sync_folder(self.folder)
        (self.folder / JOURNAL_NAME).unlink()
        sync_folder(self.folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        if not os.fstat(self._journal).st_size:
            # the disk was full before the first entry
            (self.folder / JOURNAL_NAME).unlink(missing_ok=True)
        os.close(self._journal)


def _is_system(path: Path) -> bool:
    """Names that a fresh volume may hold."""
    return path.name.startswith(".") or path.name == "lost+found"


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    file = os.open(path, flags | os.O_CREAT, 0o644)
    try:
        yield file
    finally:
        os.close(file)


def _open_locked(path: Path) -> int:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise BadInput(f"another process is packing into {path.parent}: wait for it") from None
    if path.with_name(MANIFEST_NAME).exists():
        path.unlink()
        os.close(file)
        raise BadInput(f"another process has just packed into {path.parent}: run `workbench verify {path.parent}`")
    return file


def _make_ahead(pieces: deque[Piece]) -> Iterator[tuple[Piece, np.ndarray]]:
    """Makes pieces in a thread of their own while the caller hashes and writes the one before."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        try:
            started = deque((piece, pool.submit(piece.make)) for piece in list(pieces)[: _PIECES_AHEAD + 1])
            waiting = deque(list(pieces)[_PIECES_AHEAD + 1 :])
            while started:
                piece, made = started.popleft()
                content = made.result()
                if waiting:
                    started.append((waiting[0], pool.submit(waiting.popleft().make)))
                yield piece, content
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _changed(path: Path) -> BadInput:
    return BadInput(f"{path}: changed since it was interrupted: empty {path.parent} and pack again")


def _absorb(piece: Piece, content: np.ndarray, digest: "hashlib._Hash") -> None:
    digest.update(content.data)
    piece.observe(content)


def _write_all(file: int, content: bytes | memoryview, offset: int) -> None:
    left = memoryview(content)
    while left:
        written = os.pwrite(file, left, offset)
        left, offset = left[written:], offset + written


def sync(file: int) -> None:
    """Waits until a file's bytes are on the disk itself (macOS: past the drive's cache)."""
    if hasattr(fcntl, "F_FULLFSYNC"):
        fcntl.fcntl(file, fcntl.F_FULLFSYNC)
    else:
        os.fsync(file)


def sync_folder(folder: Path) -> None:
    """Waits until a folder's names are on the disk."""
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
