"""Everything that a stored result depends on: a fresh result is reused, a stale one gives the reasons.

A stage is keyed by its configuration, the digests of its inputs, the sources that computed it (the module and everything of
the package that it imports, however deep) and the machine.
"""

import ast
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from workbench.config import Config
from workbench.hardware import machine
from workbench.schema import RunFolder
from workbench.schema.results import write_json

_FILE_NAME = "stage.json"
_PACKAGE = Path(__file__).parent.parent


@dataclass(frozen=True, kw_only=True)
class Stage:
    """The parts of a stage's key."""

    config: Mapping[str, Any]
    """Settings by dotted name."""
    inputs: Mapping[str, str]
    """Digests (or other identities) of the inputs, by name."""
    sources: Mapping[str, str]
    """SHA-256 of source files, by path in the package."""
    machine: str
    """Digest of the machine."""

    @property
    def key(self) -> str:
        """SHA-256 over all parts."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    def differences(self, older: "Stage") -> list[str]:
        """Why a result made at `older` is stale now; empty when it is fresh."""
        reasons = [f"setting {name} differs" for name in _changed(older.config, self.config)]
        reasons += [f"input {name} changed" for name in _changed(older.inputs, self.inputs)]
        reasons += [f"{name} changed" for name in _changed(older.sources, self.sources)]
        return reasons + (["made on another machine"] if older.machine != self.machine else [])

    def write(self, folder: RunFolder) -> None:
        """Stores the parts in the folder's artifacts."""
        write_json(folder.artifacts / _FILE_NAME, asdict(self))


def stage_of(config: Config, inputs: Mapping[str, str], module: str) -> Stage:
    """The stage that `module` (e.g. `workbench.gates.b_locality`) would compute now."""
    settings = json.loads(json.dumps(dict(_flatten(config.model_dump(mode="json")))))
    return Stage(config=settings, inputs=dict(inputs), sources=source_digests(module), machine=machine().digest)


def read_stage(folder: RunFolder) -> Stage | None:
    """The stage stored with a result, or None."""
    path = folder.artifacts / _FILE_NAME
    return Stage(**json.loads(path.read_text())) if path.exists() else None


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def source_digests(module: str, package: Path = _PACKAGE) -> dict[str, str]:
    """SHA-256 of `module` and of all it imports from the package, directly or not, at the top of a file or inside a function."""
    digests: dict[str, str] = {}
    waiting = [module]
    while waiting:
        path = _path_of(waiting.pop(), package)
        name = path.relative_to(package.parent).as_posix() if path else ""
        if path is None or name in digests:
            continue
        text = path.read_bytes()
        digests[name] = hashlib.sha256(text).hexdigest()
        waiting += _imports(ast.parse(text), package.name)
    return dict(sorted(digests.items()))


def _imports(tree: ast.AST, package: str) -> Iterator[str]:
    """Every dotted name that may be a module of the package, with the packages above it (their `__init__` runs too)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == package:
                yield from (".".join(parts[:depth]) for depth in range(1, len(parts) + 1))


def _path_of(module: str, package: Path) -> Path | None:
    place = package.parent.joinpath(*module.split("."))
    return next((path for path in (place / "__init__.py", place.with_suffix(".py")) if path.is_file()), None)


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _changed(older: Mapping[str, Any], newer: Mapping[str, Any]) -> list[str]:
    missing = object()
    return [name for name in sorted({*older, *newer}) if older.get(name, missing) != newer.get(name, missing)]
