"""One file with a run and everything that a third party needs to check it, and the check."""

from workbench.bundle.check import Check, State, check_bundle
from workbench.bundle.make import make_bundle

__all__ = ["Check", "State", "check_bundle", "make_bundle"]
