"""Files that people name: read whole or refused in one line, written whole or not at all."""

import errno
import json
import math
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from workbench.errors import BadInput
from workbench.units import MIB, format_bytes

MAX_TEXT_BYTES = 64 * MIB
"""Largest text or JSON file that is read: far above any configuration, prompt, index or result."""

_WORDS = ("NaN", "Infinity", "-Infinity")
"""Words for the numbers that JSON lacks; pydantic reads them as floats."""


def open_regular(path: Path, max_bytes: int | None = None) -> int:
    """Descriptor of a file opened for reading. Raises BadInput unless it is a readable regular file of at most `max_bytes`.

    A pipe or a device is refused without blocking on it.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise BadInput(f"no such file: {path}") from None
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} can't be read: {getattr(error, 'strerror', None) or error}") from None
    status = os.fstat(file)
    problem = ""
    if not stat.S_ISREG(status.st_mode):
        problem = "is no regular file"
    elif max_bytes is not None and status.st_size > max_bytes:
        problem = f"has {format_bytes(status.st_size)}, more than the {format_bytes(max_bytes)} that are read"
    if problem:
        os.close(file)
        raise BadInput(f"{path} {problem}")
    return file


def read_file(path: Path, max_bytes: int = MAX_TEXT_BYTES) -> bytes:
    """Content of a regular file of at most `max_bytes`. Raises BadInput on any other."""
    with os.fdopen(open_regular(path, max_bytes), "rb") as file:
        try:
            return file.read()
        except OSError as error:
            raise BadInput(f"{path} can't be read: {error.strerror}") from None


def read_text(path: Path) -> str:
    """Text of a UTF-8 file, without a byte order mark. Raises BadInput as `read_file` does, and on other encodings."""
    try:
        return read_file(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not UTF-8 text (byte {error.start}): save it as UTF-8") from None


def read_json(path: Path, *, strict: bool = True) -> Any:
    """Content of a JSON file. Raises BadInput as `read_text` does, and on anything but JSON.

    Without `strict`, NaN and Infinity are numbers: earlier workbenches wrote them into results.
    """
    text = read_text(path)
    try:
        return json.loads(text, parse_constant=_refuse if strict else None)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path} is not JSON: {str(error)[:200] or 'nested too deeply'}") from None


def _refuse(constant: str) -> Any:
    raise ValueError(f"it holds {constant}, which is no JSON number")


def read_json_object(path: Path, *, strict: bool = True) -> dict[str, Any]:
    """Content of a file that holds one JSON object. Raises BadInput as `read_json` does, and on other JSON."""
    content = read_json(path, strict=strict)
    if not isinstance(content, dict):
        raise BadInput(f"{path}: a JSON object is expected")
    return content


def json_text(value: Any, *, indent: int | None = None) -> str:
    """A value as strict JSON, which has no NaN and no infinity: they become `"NaN"`, `"Infinity"` and `"-Infinity"`.

    Fields of type float read these words as numbers, `with_numbers` does so in tables. Paths and other objects become text.
    """
    return json.dumps(_with_words(value), indent=indent, allow_nan=False, default=str)


def _with_words(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return json.dumps(float(value))
    return _within(value, _with_words)


def with_numbers(value: Any) -> Any:
    """Content of a JSON file in which the words of `json_text` are numbers again."""
    if isinstance(value, str) and value in _WORDS:
        return float(value)
    return _within(value, with_numbers)


def _within(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, Mapping):
        return {key: change(each) for key, each in value.items()}
    return [change(each) for each in value] if isinstance(value, list | tuple) else value


def check_output(path: Path) -> Path:
    """`path`, if a file is there or can be made. Raises BadInput where a folder, link, pipe or device is, and as `_find` does."""
    mode = _find(path)
    if mode is not None and not stat.S_ISREG(mode):
        raise BadInput(f"can't write {path}: a folder, link, pipe or device is there; name a file")
    return path


def check_output_folder(path: Path) -> Path:
    """`path`, if a folder is there or can be made. Raises BadInput where something else is, and as `_find` does."""
    if _find(path) is not None and not path.is_dir():
        raise BadInput(f"can't write to {path}: a file, pipe or device is there; name a folder")
    return path


def _find(path: Path) -> int | None:
    """Mode of the entry at `path`; None: there is none. Raises BadInput unless the user may write in the nearest folder above."""
    mode = None
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:
        raise BadInput(f"can't write {path}: {getattr(error, 'strerror', None) or error}") from None
    above = next(folder for folder in path.absolute().parents if os.path.lexists(folder))
    if not above.is_dir():
        raise BadInput(f"can't write {path}: {above} is no folder")
    if not os.access(above, os.W_OK | os.X_OK):
        raise BadInput(f"can't write {path}: {above} is not writable for you")
    return mode


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a path to write to, which then replaces `path`; an error or an interrupt leaves the earlier file and nothing else.

    The folder of `path` is made. Raises BadInput where `check_output` does, and OSError naming `path`.
    """
    part = check_output(path).with_name(path.name + ".part")
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        # left by a process that was killed, or a link or pipe
        part.unlink(missing_ok=True)
        try:
            yield part
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Makes an OSError without a file's name, as writing to an open file raises it, or with that of the part, name `path`."""
    try:
        yield
    except OSError as error:
        if error.filename not in (None, str(path.with_name(path.name + ".part"))):
            raise
        raise OSError(error.errno or errno.EIO, error.strerror or str(error), str(path)) from None


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a whole file, or raises as `replacing` does."""
    with replacing(path) as part:
        part.write_bytes(content)
