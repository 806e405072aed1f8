"""Formats on disk: ExpertMajor v2, PLE pages, codecs, pack, verify."""

from workbench.stores.expert_major import ExpertStore
from workbench.stores.extents import Extent
from workbench.stores.folder import Store, open_store, open_to_run
from workbench.stores.ple_pages import PleStore

__all__ = ["ExpertStore", "Extent", "PleStore", "Store", "open_store", "open_to_run"]
