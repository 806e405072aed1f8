"""A bundle that an earlier workbench made (events version 1, two turns, settings of that time) still passes every check."""

from pathlib import Path

import pytest

from workbench.analysis.run_metrics import run_metrics, token_series
from workbench.bundle import State, check_bundle
from workbench.bundle.archive import unpack_archive
from workbench.bundle.version_1 import as_version_1_counted, digest_as_written
from workbench.config import Config
from workbench.experiments.generate import GenerateConfig
from workbench.schema import RunFolder, read_events
from workbench.schema.events import events_version

BUNDLE = Path(__file__).parents[1] / "data" / "version_1" / "generate.bundle.tar"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    home = tmp_path_factory.mktemp("old")
    unpack_archive(BUNDLE, home)
    return RunFolder(home / "run")


def test_every_check_passes():
    _, checks = check_bundle(BUNDLE)
    assert [check for check in checks if check.state is State.FAILED] == []
    passed = {check.what for check in checks if check.state is State.OK}
    assert {"files", *(f"generate: {what}" for what in ("config digest", "metrics", "values by token", "detectors"))} <= passed


def test_its_metrics_are_computed_again_to_the_last_bit(folder):
    events = read_events(folder.path / "events.parquet")
    assert events_version(folder.path / "events.parquet") == "1"
    found = run_metrics(events)
    assert len(found) > 60
    assert found.items() <= folder.result.metrics.items()
    assert token_series(as_version_1_counted(events)) == folder.result.per_token


def test_the_time_between_its_turns_is_no_longer_a_tokens(folder):
    events = read_events(folder.path / "events.parquet")
    now, then = (token_series(frame)["e2e/tpot_p50_ms"] for frame in (events, as_version_1_counted(events)))
    assert len(then) == len(now) + 1
    assert max(then) > max(now)
    assert set(now) < set(then)


def test_a_digest_is_that_of_the_settings_of_its_time(folder):
    stored = folder.environment["config_digest"]
    assert digest_as_written(GenerateConfig, folder.path / "config.toml") == stored


class Inner(Config):
    """Of the settings below."""

    rate: float = 0.5
    """A number."""
    limit: int | None = None
    """May be null."""


class Settings(Config):
    """Settings whose file lacks what is null."""

    names: tuple[str, ...] = ("a",)
    """Some names."""
    inner: Inner = Inner()
    """A table."""
    seed: int | None = None
    """May be null."""


@pytest.mark.parametrize("values", [{}, {"seed": 3}, {"inner": {"limit": 2}, "names": []}])
def test_a_digest_is_found_from_the_file_alone(tmp_path, values):
    config = Settings.build(values)
    path = tmp_path / "config.toml"
    path.write_text(config.to_toml())
    assert digest_as_written(Settings, path) == config.digest
    path.write_text(config.to_toml().replace("0.5", "0.6"))
    assert digest_as_written(Settings, path) != config.digest
