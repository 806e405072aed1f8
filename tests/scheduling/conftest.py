"""The rules of tickets as a state machine, and a way to load the scheduler with one line changed."""

import importlib.util
import itertools
import sys
import types
from pathlib import Path

import pytest

import workbench.scheduling

HERE = Path(__file__).parent
PACKAGE = Path(workbench.scheduling.__file__).parent
ORDER = ("ticket", "demand", "slots", "lanes", "pool", "queue", "traffic", "lifecycle", "scheduler", "__init__")
_numbers = itertools.count()


def load_rules():
    """`tests/scheduling/rules.py` as a module."""
    spec = importlib.util.spec_from_file_location("scheduling_rules", HERE / "rules.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load_mutant(file, old, new):
    """A second copy of `workbench.scheduling` in which `old`, found exactly once in `file`, reads `new`."""
    name = f"mutant_scheduling_{next(_numbers)}"
    package = types.ModuleType(name)
    package.__path__ = []
    sys.modules[name] = package
    for part in ORDER:
        source = (PACKAGE / f"{part}.py").read_text()
        if part == file:
            assert source.count(old) == 1, f"{file}.py has {source.count(old)} times {old!r}"
            source = source.replace(old, new)
        module = package if part == "__init__" else types.ModuleType(f"{name}.{part}")
        sys.modules[module.__name__] = module
        exec(compile(source.replace("workbench.scheduling", name), f"{part}.py", "exec"), module.__dict__)
    return package


@pytest.fixture(scope="session")
def rules():
    return load_rules()


@pytest.fixture
def mutant():
    yield load_mutant
    for name in [name for name in sys.modules if name.startswith("mutant_scheduling_")]:
        del sys.modules[name]
