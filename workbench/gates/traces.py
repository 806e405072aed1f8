"""Route traces of gates: a file that the user names, or a recording that is reused while it is fresh."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from workbench.errors import BadInput, UnmetPrerequisite
from workbench.experiments.routes import ROUTES_NAME
from workbench.experiments.trace import TraceConfig, record_trace
from workbench.gates.base import find_result
from workbench.gates.stage import Stage, file_digest, stage_of
from workbench.geometry import FLASH_NEXT, Geometry, slice_config
from workbench.paths import bundled_model, data_folder, store_folder
from workbench.schema import RunFolder, Status, list_runs
from workbench.schema.parquet import check_parquet
from workbench.stores.manifest import MANIFEST_NAME

_MAKE_STORE = {
    "slice": "workbench slice",
    "flash-next": "workbench pack CHECKPOINT --out data/stores/flash-next",
}


@dataclass(frozen=True, kw_only=True)
class TraceSource:
    """A trace file, or the configuration of a recording."""

    file: str
    """Path of a trace; empty: record one."""
    recording: TraceConfig
    """Configuration of the recording."""

    def prepare(self) -> None:
        """Packs the bundled model where a recording needs it. Raises UnmetPrerequisite naming the command for other stores."""
        if not self.file:
            ensure_store(self.recording.profile)

    def inputs(self) -> Mapping[str, str]:
        """Digests of the files that a recording or an analysis would read, by name."""
        if self.file:
            # before its digest: a file that is no trace may be as long as it likes
            check_parquet(_existing(self.file))
            return {"trace": file_digest(Path(self.file))}
        store = store_folder(self.recording.profile) / MANIFEST_NAME
        return {
            "prompts": file_digest(data_folder() / "prompts" / "manifest.json"),
            "store": file_digest(store) if store.exists() else "missing",
        }

    def obtain(self, root: Path) -> Path:
        """The trace: the named file, a fresh recording under `root`, or a new one there."""
        if self.file:
            return _existing(self.file)
        stage = stage_of(self.recording, self.inputs(), record_trace.__module__)
        folder, _ = find_result(root, "trace", stage)
        if folder is None:
            earlier = _interrupted(root, stage)
            folder = record_trace(self.recording, root, tags={"stage": stage.key}, earlier=earlier)
            stage.write(folder)
        return folder.artifacts / ROUTES_NAME


def _interrupted(root: Path, stage: Stage) -> RunFolder | None:
    """The newest recording of this stage that did not finish; its whole requests need not be recorded again."""
    runs = [run for run in list_runs(root, "trace") if run.environment["tags"].get("stage") == stage.key]
    open_runs = [run for run in runs if run.status in (Status.INTERRUPTED, Status.ABANDONED)]
    return open_runs[-1] if open_runs else None


def ensure_store(profile: str) -> None:
    """Packs the bundled model where its store is missing. Raises UnmetPrerequisite for another profile without a store."""
    folder = store_folder(profile)
    if (folder / MANIFEST_NAME).exists():
        return
    if profile != "mini":
        raise UnmetPrerequisite(f"no store in {folder}: make it with `{_MAKE_STORE[profile]}`")
    from workbench.stores.pack import pack

    pack(bundled_model(), folder)


def profile_geometry(profile: str) -> Geometry:
    """Geometry of a profile's packed store, or before there is one, of its model."""
    folder = store_folder(profile)
    if (folder / "config.json").exists():
        return Geometry.from_folder(folder)
    if profile == "mini":
        return Geometry.from_folder(bundled_model())
    return FLASH_NEXT if profile == "flash-next" else Geometry.from_config(slice_config())


def _existing(name: str) -> Path:
    path = Path(name).expanduser()
    if not path.is_file():
        raise BadInput(f"trace={name}: no such file (record one with `workbench trace`)")
    return path
