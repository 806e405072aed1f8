"""Makes a bundle: the run's folder with its arms, and the route trace that the run used, in one file."""

from collections.abc import Iterator
from pathlib import Path

from workbench import __version__
from workbench.bundle.archive import write_archive
from workbench.bundle.manifest import MANIFEST, BundleManifest, file_entry, table_entry
from workbench.errors import BadInput
from workbench.schema import Result, RunFolder, Status, read_routes
from workbench.schema.parquet import read_parquet

SUFFIX = ".bundle.tar"
RUN = "run"
"""Folder of the run within a bundle."""
INPUTS = "inputs"
"""Folder within a bundle for inputs that another run made: the route trace of a gate."""
EVENTS = "events.parquet"


def make_bundle(folder: RunFolder, out: Path) -> BundleManifest:
    """Writes the bundle to `out` (a file) and returns its manifest. Raises BadInput on a run that has not finished."""
    result = folder.result
    if result is None or folder.status is not Status.FINISHED:
        raise BadInput(f"{folder.path} is {folder.status.value}: only a finished run can be bundled")
    files = dict(_files_of(folder))
    inputs, left_out = _inputs(result)
    files |= inputs
    entries = {name: file_entry(path) for name, path in files.items()}
    tables = {name: table_entry(read_parquet(path)) for name, path in files.items() if path.name == EVENTS}
    manifest = BundleManifest(
        kind=result.kind,
        run_id=result.run_id,
        workbench=__version__,
        needs=needs_of(folder, result),
        left_out=left_out,
        files=entries,
        tables=tables,
    )
    write_archive(out, (MANIFEST, manifest.model_dump_json(indent=1).encode()), files.items())
    return manifest


def _files_of(folder: RunFolder) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.path.rglob("*")):
        if path.is_symlink():
            raise BadInput(f"{path} is a link: a bundle holds plain files only")
        if path.is_file():
            yield f"{RUN}/{path.relative_to(folder.path).as_posix()}", path


def _inputs(result: Result) -> tuple[dict[str, Path], tuple[str, ...]]:
    trace = result.tags.get("trace")
    if trace is None:
        return {}, ()
    path = Path(trace)
    if not path.is_file():
        return {}, (f"route trace {trace}",)
    # tags are text that anybody may have written: only a route trace goes into the bundle
    read_routes(path)
    return {f"{INPUTS}/{path.name}": path}, ()


def needs_of(folder: RunFolder, result: Result) -> dict[str, str]:
    """Digests of stores and checkpoints in the tags of the run and of its arms."""
    tags = dict(result.tags)
    for child in sorted(folder.path.glob("arms/*/*/arm/*/*/result.json")):
        arm = RunFolder(child.parent).result
        tags |= arm.tags if arm else {}
    own = ("output_digest", "state_digest", "routing_digest")
    return {name: tags[name] for name in sorted(tags) if name.endswith(("_digest", "_sha256")) and name not in own}
