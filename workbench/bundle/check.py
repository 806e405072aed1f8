"""Checks a bundle on any machine: nothing in the bundle is trusted, and all that can be computed again is computed again.

The check shows whether the file is consistent and the verdict follows from the raw events. It can't show who made the file: a
consistent change of everything is found only by the content digest that the sender quoted elsewhere.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from polars.exceptions import PanicException, PolarsError
from pydantic import ValidationError

from workbench.bundle.archive import unpack_archive
from workbench.bundle.checks import Check, State, failed, not_checked, ok
from workbench.bundle.gate_checks import check_gate
from workbench.bundle.make import EVENTS, INPUTS, RUN, needs_of
from workbench.bundle.manifest import BUNDLE_VERSION, MANIFEST, BundleManifest, differences, file_entry, table_entry
from workbench.bundle.run_checks import check_config, check_run
from workbench.bundle.series_checks import check_series
from workbench.errors import BadInput, UnmetPrerequisite
from workbench.paths import store_folder
from workbench.schema import Result, RunFolder
from workbench.schema.parquet import read_parquet
from workbench.stores.manifest import read_manifest

__all__ = ["Check", "State", "check_bundle"]
_MAX_MANIFEST_BYTES = 256 << 20
_UNREADABLE = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    OSError,
    PolarsError,
    PanicException,
)
"""Exceptions that malformed records cause in code for well-formed ones; polars' PanicException is no subclass of Exception."""


def check_bundle(path: Path) -> tuple[BundleManifest, list[Check]]:
    """The manifest and every check, in order. Raises BadInput on a file that is not a bundle or not safe to read."""
    with tempfile.TemporaryDirectory(prefix="workbench-check-") as name:
        folder = Path(name)
        names = unpack_archive(path, folder)
        manifest = _read_manifest(path, folder, names)
        try:
            return manifest, list(_checks(path, folder, manifest, names))
        except BadInput as error:
            raise BadInput(str(error).replace(f"{folder}/", f"{path}: ")) from None
        except _UNREADABLE as error:
            reason = (str(error).splitlines() or [""])[0][:200]
            raise BadInput(f"{path}: a record in it can't be read ({type(error).__name__}: {reason})") from None


def _read_manifest(path: Path, folder: Path, names: list[str]) -> BundleManifest:
    if names[:1] != [MANIFEST]:
        raise BadInput(f"{path}: not a bundle: its first file is not {MANIFEST}")
    if (folder / MANIFEST).stat().st_size > _MAX_MANIFEST_BYTES:
        raise BadInput(f"{path}: its manifest is too large to be one")
    try:
        manifest = BundleManifest.model_validate_json((folder / MANIFEST).read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        raise BadInput(f"{path}: not a bundle manifest ({'.'.join(map(str, first['loc']))}: {first['msg']})") from None
    if manifest.version != BUNDLE_VERSION:
        raise BadInput(f"{path}: bundle version {manifest.version}, this workbench reads {BUNDLE_VERSION}")
    return manifest


def _checks(path: Path, folder: Path, manifest: BundleManifest, names: list[str]) -> Iterator[Check]:
    yield from _check_files(folder, manifest, names)
    run = RunFolder(folder / RUN)
    if not (run.path / "environment.json").exists() or (result := run.result) is None:
        raise BadInput(f"{path}: it holds no finished run")
    yield from _check_manifest(manifest, run, result)
    if result.kind == "abba":
        yield check_config("comparison", run, result)
        yield from check_series(run, result)
    elif result.kind.startswith("gate_"):
        yield check_config("gate", run, result)
        yield from check_gate(run, result, manifest, folder / INPUTS)
    else:
        yield from check_run(result.kind, run, result)
    yield from _check_needs(manifest, result.profile)


def _check_files(folder: Path, manifest: BundleManifest, names: list[str]) -> Iterator[Check]:
    held = set(names[1:])
    for name in sorted(held ^ manifest.files.keys()):
        yield failed(name, "it is not in the manifest" if name in held else "it is in the manifest and not in the bundle")
    wrong = [name for name in sorted(held & manifest.files.keys()) if file_entry(folder / name) != manifest.files[name]]
    for name in wrong:
        yield failed(name, _where(folder / name, manifest, name))
    for name in sorted(held - set(wrong)):
        if name.endswith(f"/{EVENTS}") and table_entry(read_parquet(folder / name)) != manifest.tables.get(name):
            yield failed(name, "its values are not those that the manifest lists")
    if not wrong and held == manifest.files.keys():
        yield ok("files", f"SHA-256 of {len(held)} files; content digest {manifest.content_digest}")


def _check_manifest(manifest: BundleManifest, run: RunFolder, result: Result) -> Iterator[Check]:
    """Compares the manifest's fields about the run with the run itself."""
    found = {"kind": result.kind, "run_id": result.run_id, "needs": needs_of(run, result)}
    if wrong := [name for name, value in found.items() if getattr(manifest, name) != value]:
        yield failed(MANIFEST, f"{', '.join(wrong)}: not what the run says")


def _where(path: Path, manifest: BundleManifest, name: str) -> str:
    """How a file differs from the manifest, in words: for an events table, the columns and rows."""
    if name not in manifest.tables:
        return "its SHA-256 is not the manifest's"
    try:
        place = differences(manifest.tables[name], table_entry(read_parquet(path)))
    except BadInput as error:
        place = str(error)
    return f"its SHA-256 is not the manifest's: {place}"


def _check_needs(manifest: BundleManifest, profile: str) -> Iterator[Check]:
    for name, digest in manifest.needs.items():
        here = _store_here(profile) if name == "store_digest" else None
        if here == digest:
            yield ok(name, f"{digest[:12]}, this machine has the same store")
        else:
            yield not_checked(name, f"{digest[:12]} is not on this machine")


def _store_here(profile: str) -> str | None:
    try:
        return read_manifest(store_folder(profile)).sha256
    except (BadInput, UnmetPrerequisite):
        return None
