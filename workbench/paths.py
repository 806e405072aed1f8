"""Paths of data, stores and results: one root, the same from a shell, a notebook or a test."""

import os
from pathlib import Path
from typing import Literal, get_args

from workbench.errors import BadInput

Profile = Literal["mini", "slice", "flash-next"]
"""Model and its store."""
PROFILES: tuple[Profile, ...] = get_args(Profile)


def home() -> Path:
    """`WORKBENCH_HOME` if it is set, else the folder of the checkout."""
    return Path(os.environ.get("WORKBENCH_HOME") or Path(__file__).parent.parent).resolve()


def runs_folder() -> Path:
    """Folder of result folders and MLflow's store: `WORKBENCH_RUNS` if it is set, else `runs` in the home folder."""
    return Path(os.environ.get("WORKBENCH_RUNS") or home() / "runs").resolve()


def cache_folder() -> Path:
    """What may be lost: `XDG_CACHE_HOME` where it is set, else `.cache` in the user's folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "wavefront-workbench"


def data_folder() -> Path:
    """Folder of the bundled data: the model, prompts, envelopes, machines."""
    return Path(__file__).parent.parent.resolve() / "data"


def notebooks_folder() -> Path:
    """The notebooks of the checkout."""
    return Path(__file__).parent.parent.resolve() / "notebooks"


def bundled_model() -> Path:
    """The checkpoint of profile `mini`."""
    return data_folder() / "qwen4exp-mini-4bit"


def store_folder(profile: str) -> Path:
    """Folder of a profile's packed store; `WORKBENCH_STORE`, if set, is used for any profile. Raises BadInput on others."""
    if profile not in PROFILES:
        raise BadInput(f"no such profile: {profile!r} (one of {', '.join(PROFILES)})")
    return Path(os.environ.get("WORKBENCH_STORE") or home() / "data" / "stores" / profile)
