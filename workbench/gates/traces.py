"""Where gates get their route traces from: a file that the user names, or a recording that is reused while it is fresh."""

from pathlib import Path

from workbench.errors import BadInput
from workbench.geometry import FLASH_NEXT, Geometry, slice_config
from workbench.paths import bundled_model, store_folder


def profile_geometry(profile: str) -> Geometry:
    """Geometry of a profile's packed store, or before there is one, of its model."""
    folder = store_folder(profile)
    if (folder / "config.json").exists():
        return Geometry.from_folder(folder)
    if profile == "mini":
        return Geometry.from_folder(bundled_model())
    return FLASH_NEXT if profile == "flash-next" else Geometry.from_config(slice_config())


def trace_file(name: str) -> Path:
    """The trace that a setting names. Raises BadInput when there is no such file."""
    path = Path(name).expanduser()
    if not path.is_file():
        raise BadInput(f"trace={name}: no such file (record one with `workbench trace`)")
    return path
