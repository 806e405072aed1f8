"""Plug-in classes in place of bundled ones: `file.py:Class` in a setting, with the file's digest in the configuration."""

import hashlib
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

from pydantic import AfterValidator

from workbench.errors import BadInput, did_you_mean
from workbench.files import read_file

_DIGEST = "@sha256:"


def is_plugin(name: str) -> bool:
    """True when a setting names a class in a file, not a bundled one."""
    return ".py:" in name or name.endswith(".py")


def short_name(name: str) -> str:
    """A setting for tables: of `/folder/file.py:Class@sha256:...` the part `file.py:Class`, any other name as it is."""
    return name.partition(_DIGEST)[0].rpartition("/")[2] if is_plugin(name) else name


def pinned(name: str) -> str:
    """`file.py:Class` with its absolute path and the file's SHA-256; any other name as it is.

    Raises BadInput when there is no such file, or when its SHA-256 is not the one that the name gives.
    """
    if not is_plugin(name):
        return name
    path, class_name, said = _parts(name)
    return f"{path}:{class_name}{_DIGEST}{_checked_digest(path, read_file(path), said)}"


Plugin = Annotated[str, AfterValidator(pinned)]
"""A name, or `file.py:Class`: the file's digest becomes part of the configuration. For a field of a `Config`."""


def load_class(spec: str, base: type) -> Any:
    """The class that `file.py:Class` names, a subclass of `base` without abstract methods.

    The file is executed once per content and process; another process loads the class by the same `spec`. Raises BadInput when
    there is no such file or class, when the file has changed since its digest was taken, and when it fails on import.
    """
    path, name, said = _parts(spec)
    source = read_file(path)
    module = _module(path, source, _checked_digest(path, source, said))
    found = getattr(module, name, None)
    if found is None:
        raise BadInput(f"{path} has no class {name}" + did_you_mean(name, _class_names(module), lead=", "))
    if not (isinstance(found, type) and issubclass(found, base)):
        raise BadInput(f"{path}: {name} is no subclass of {base.__module__}.{base.__name__}")
    if missing := getattr(found, "__abstractmethods__", None):
        raise BadInput(f"{path}: {name} does not define {', '.join(sorted(missing))}")
    return found


def _parts(spec: str) -> tuple[Path, str, str]:
    """File, class and digest (empty: none) of `file.py:Class@sha256:...`. Raises BadInput without a class."""
    place, _, digest = spec.partition(_DIGEST)
    file, _, name = place.rpartition(":")
    if not name.isidentifier():
        raise BadInput(f"{spec!r} names no class: write path/to/file.py:Class")
    return Path(os.path.realpath(Path(file).expanduser())), name, digest


def _checked_digest(path: Path, source: bytes, said: str) -> str:
    found = hashlib.sha256(source).hexdigest()
    if said and said != found:
        raise BadInput(f"{path} has changed since this configuration was written: its SHA-256 was {said[:12]}, is {found[:12]}")
    return found


def _module(path: Path, source: bytes, digest: str) -> ModuleType:
    """The module of a file's content. Executed from the bytes that were digested: cached bytecode may be of an older file."""
    module_name = f"workbench_plugin_{digest[:16]}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    module = ModuleType(module_name)
    module.__file__ = str(path)
    sys.modules[module_name] = module
    try:
        exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)
    except BaseException as error:
        sys.modules.pop(module_name, None)
        if isinstance(error, KeyboardInterrupt):
            raise
        raise BadInput(f"{path}, line {_line(path, error)}: {type(error).__name__}: {' '.join(str(error).split())}") from error
    return module


def _line(path: Path, error: BaseException) -> int | None:
    """The last line of a file that was executed before an error, or the line of its syntax error."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return lines[-1] if lines else getattr(error, "lineno", None)


def _class_names(module: ModuleType) -> list[str]:
    return [name for name, value in vars(module).items() if isinstance(value, type)]
