"""The rules of tickets as a state machine."""

import importlib.util
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def rules():
    """`tests/scheduling/rules.py` as a module."""
    spec = importlib.util.spec_from_file_location("scheduling_rules", Path(__file__).parent / "rules.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
