"""Bundles: one file with a run and all data that a third party needs to check the run; makes and checks them."""

from workbench.bundle.check import Check, State, check_bundle
from workbench.bundle.make import make_bundle

__all__ = ["Check", "State", "check_bundle", "make_bundle"]
