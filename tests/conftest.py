"""What all tests share: the packed model, planted route traces, and no filing in MLflow."""

import os
import sys

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, settings

from workbench.gates.base import Findings, Gate, GateConfig
from workbench.paths import bundled_model
from workbench.schema import ROUTE_SCHEMA, Criterion, Evidence, write_routes
from workbench.stores.pack import pack

# importing MLflow and making a store takes seconds; the tests of tracking ask for it
os.environ.setdefault("WORKBENCH_TRACKING", "off")

# a slow machine is no failure; the long tests search with fresh randomness
settings.register_profile("searching", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", settings.get_profile("searching"), derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


SLOWEST_FILES = (
    "test_notebooks.py", "test_abba_tracking.py", "test_faults.py", "test_overlap_settings.py", "c_overlap/test_gate.py",
    "test_tracking.py", "test_mutants.py", "test_runner.py", "test_twin_validation.py",
)  # fmt: skip
"""Their few tests take longest: begun first, no worker has them left at the end while the other one idles."""


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: next((i for i, name in enumerate(SLOWEST_FILES) if item.path.match(name)), len(SLOWEST_FILES)))


def pytest_runtest_setup(item):
    if item.get_closest_marker("apple") and sys.platform != "darwin":
        pytest.skip("runs on a Mac alone")


@pytest.fixture(scope="session", autouse=True)
def cache_elsewhere(tmp_path_factory):
    """What is remembered between runs lies beside the tests' other files, not in the user's folder."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def command_line():
    """`workbench.cli.run`, which knows every command: the registry registers them, once."""
    from tests.hostile import commands
    from workbench import cli

    assert list(commands.every_command())
    return cli.run


@pytest.fixture(scope="session")
def packed(tmp_path_factory):
    """The bundled model, packed once."""
    folder = tmp_path_factory.mktemp("stores") / "mini"
    pack(bundled_model(), folder)
    return folder


@pytest.fixture
def mini_store(packed, monkeypatch):
    """The same, named by `WORKBENCH_STORE`."""
    monkeypatch.setenv("WORKBENCH_STORE", str(packed))
    return packed


@pytest.fixture(scope="session")
def write_trace():
    """Writes routes `[requests, tokens, layers, top_k]` as a trace whose first `prompt` tokens are prefill; returns its path."""

    def write(path, routes, *, num_experts=128, prompt=2, split="held_out"):
        requests, length, layers, top_k = routes.shape
        rows = requests * length * layers
        position = np.tile(np.repeat(np.arange(length), layers), requests)
        frame = pl.DataFrame(
            {
                "request": np.repeat(np.arange(requests), length * layers),
                "family": ["prose"] * rows,
                "split": [split] * rows,
                "phase": np.where(position < prompt, "prefill", "decode"),
                "position": position,
                "layer": np.tile(np.arange(layers), requests * length),
                "token_id": np.zeros(rows, dtype=np.int32),
                "experts": routes.reshape(rows, top_k).tolist(),
                "weights": np.full((rows, top_k), 1 / top_k).tolist(),
            },
            schema=ROUTE_SCHEMA,
        )
        write_routes(frame, path, num_layers=layers, num_experts=num_experts, top_k=top_k)
        return path

    return write


class Settings(GateConfig):
    """Of a planted gate: it passes while `value` is clearly below 1."""

    value: float = 0.5
    size: int = 100


@pytest.fixture
def make_gate():
    """A gate without work; `calls` collects what each run was given and what was on disk by then."""

    def make(name="x_first", *, calls=None, inputs=None, needs=()):
        def run(config, folder):
            if calls is not None:
                calls.append((config, (folder.path / "config.toml").read_text(), folder.environment["config_digest"]))
            low, high = config.value - 0.1, config.value + 0.1
            clause = Criterion(code="X.one", statement="s", value=config.value, low=low, high=high, relation="<", threshold=1.0)
            return Findings(criteria=[clause], summary="so it is", enables=("more",), tables={"sizes": [{"size": config.size}]})

        return Gate(
            name=name,
            question="Is it so?",
            evidence=Evidence.TRACE,
            config=Settings,
            smoke_settings={"size": 3},
            module="workbench.units",
            shown={"sizes": "Sizes (trace)"},
            prepare=lambda _: None,
            inputs=lambda _: dict(inputs or {}),
            run=run,
            needs=needs,
        )

    return make
