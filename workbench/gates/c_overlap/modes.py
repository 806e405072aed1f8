"""Gate C's prefill modes: one layer of a store, read for real, with compute replaced by timed waits."""

import polars as pl

from workbench.experiments.modes import ModesConfig, measure_modes
from workbench.gates.c_overlap.config import OverlapConfig
from workbench.paths import store_folder
from workbench.stores.manifest import MANIFEST_NAME

_TILES = {"mini": (1, 4, 16, 64, 256)}
_FULL_TILES = (16, 64, 256, 1024, 2048)
"""Tokens of the tiles for a layer of 512 experts; layers of mini have 128."""


def modes_profile(config: OverlapConfig) -> str:
    """Profile whose layer is read: `slice` for mini where its store exists, because mini's records are small."""
    has_slice = (store_folder("slice") / MANIFEST_NAME).exists()
    return "slice" if config.profile == "mini" and has_slice and not config.smoke else config.profile


def run_modes(config: OverlapConfig) -> pl.DataFrame:
    """Every prefill pass of a tile in a mode, in `experiments.modes.MODE_SCHEMA`."""
    profile = modes_profile(config)
    tiles = config.tiles or _TILES.get(profile, _FULL_TILES)
    return measure_modes(ModesConfig(profile=profile, tiles=tiles, repeats=config.mode_repeats, seed=config.seed)).passes
