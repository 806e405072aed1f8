"""A plain tar file of regular files, the same bytes for the same content, and a reader that is safe on untrusted archives.

Python's `tarfile` follows headers that claim any size; this reader checks each 512-byte header, and accepts only regular files
with harmless names whose whole content is within the archive.
"""

import io
import os
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from workbench.errors import BadInput
from workbench.files import open_regular, replacing

_BLOCK_BYTES = tarfile.BLOCKSIZE
_CHUNK_BYTES = 1 << 20
MAX_BYTES = 4 << 30
MAX_FILES = 100_000
MAX_NAME_BYTES = 255


def write_archive(path: Path, first: tuple[str, bytes], files: Iterable[tuple[str, Path]]) -> None:
    """Writes `first` (name, content), then `files` (name, source), atomically; times, owners and modes are left out."""
    with replacing(path) as part, tarfile.open(part, "w", format=tarfile.USTAR_FORMAT) as archive:
        archive.addfile(_header(first[0], len(first[1])), io.BytesIO(first[1]))
        for name, source in files:
            with os.fdopen(open_regular(source), "rb") as content:
                archive.addfile(_header(name, os.fstat(content.fileno()).st_size), content)


def _header(name: str, num_bytes: int) -> tarfile.TarInfo:
    header = tarfile.TarInfo(name)
    header.size, header.mode = num_bytes, 0o644
    return header


def unpack_archive(path: Path, folder: Path) -> list[str]:
    """Unpacks into the empty `folder` and returns the names in order. Raises BadInput on anything but an archive as above."""
    names: list[str] = []
    try:
        with os.fdopen(open_regular(path, MAX_BYTES), "rb") as archive:
            size = os.fstat(archive.fileno()).st_size
            for header in _headers(archive, size, path):
                _copy(archive, header.size, folder / _checked(header.name, path))
                names.append(header.name)
    except OSError as error:
        raise BadInput(f"{path} can't be unpacked: {error.strerror or error}") from None
    return names


def _headers(archive: BinaryIO, size: int, path: Path) -> Iterator[tarfile.TarInfo]:
    """Yields the headers one by one, each with the archive positioned at that member's content."""
    for _ in range(MAX_FILES):
        place = archive.tell()
        block = archive.read(_BLOCK_BYTES)
        if block == bytes(_BLOCK_BYTES):
            # tar pads to 10 KiB; a sparse file may claim terabytes of zeros
            rest = archive.read(_CHUNK_BYTES + 1)
            if rest.strip(b"\0") or len(rest) > _CHUNK_BYTES:
                raise BadInput(f"{path}: there are bytes after its end")
            return
        try:
            header = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        except (tarfile.HeaderError, UnicodeDecodeError) as error:
            raise BadInput(f"{path}: not a bundle (byte {place}: {error})") from None
        if header.type != tarfile.REGTYPE:
            raise BadInput(f"{path}: {header.name!r} is not a plain file: refused")
        if not 0 <= header.size <= size - place - _BLOCK_BYTES:
            raise BadInput(f"{path}: {header.name!r} claims {header.size:,} bytes, which the file does not have")
        yield header
        archive.seek(place + _BLOCK_BYTES + -(-header.size // _BLOCK_BYTES) * _BLOCK_BYTES)
    raise BadInput(f"{path}: more than {MAX_FILES:,} files")


def _checked(name: str, path: Path) -> PurePosixPath:
    parts = name.split("/")
    odd = any(part in ("", ".", "..") for part in parts) or not name.isprintable() or "\\" in name or ":" in name
    if odd or len(name.encode()) > MAX_NAME_BYTES:
        raise BadInput(f"{path}: {name!r} is no name for a file of a bundle: refused")
    return PurePosixPath(name)


def _copy(archive: BinaryIO, num_bytes: int, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("xb") as file:
        while num_bytes > 0:
            chunk = archive.read(min(num_bytes, _CHUNK_BYTES))
            if not chunk:
                raise OSError("it ends too early")
            if chunk.count(0) == len(chunk):
                # a hole stays a hole: a sparse archive takes as little disk space here
                file.seek(len(chunk), io.SEEK_CUR)
            else:
                file.write(chunk)
            num_bytes -= len(chunk)
        file.truncate()
