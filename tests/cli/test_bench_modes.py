import json

import polars as pl
import pytest
from cyclopts import App

from workbench.cli import bench
from workbench.errors import BadInput
from workbench.experiments import modes
from workbench.experiments.modes import ModeRuns
from workbench.runtime.crossover import DiskRates

PASSES = [
    {
        "tile": tile, "repeat": 0, "mode": mode, "chosen": "micro" if mode == "auto" else mode, "seconds": seconds,
        "wait_s": 0.1, "io_s": 0.5, "physical_bytes": 4e8, "union_bytes": 3e8, "layer_bytes": 4e8,
    }
    for tile in (16, 64)
    for mode, seconds in (("micro", 1.0), ("macro", 1.5), ("auto", 1.1))
]  # fmt: skip


@pytest.fixture
def asked(monkeypatch):
    """Configurations that were measured; what they gave is planted."""
    configs = []
    rates = DiskRates(sparse_bytes_per_s=1e9, sequential_bytes_per_s=1e9, source="planted")

    def measure(config):
        configs.append(config)
        return ModeRuns(passes=pl.DataFrame(PASSES), rates=rates)

    monkeypatch.setattr(modes, "measure_modes", measure)
    return configs


@pytest.fixture
def command():
    app = App(name="workbench", result_action="return_value")
    bench.register(app)
    return lambda *words: app(["bench", *words], exit_on_error=False, print_error=False)


def test_modes_are_shown_by_tile_and_said_to_be_emulated(asked, command, tmp_path, capsys):
    command("modes", "--profile", "mini", "--tiles", "16", "64", "--set", "layer=2", "--out", str(tmp_path))
    told = capsys.readouterr().out
    assert "emulated: compute is a timed wait" in told
    assert "disk: planted" in told
    assert [line.split("|")[1].strip() for line in told.splitlines() if line.startswith("| ")][-2:] == ["16", "64"]
    assert (asked[0].profile, asked[0].tiles, asked[0].layer, asked[0].repeats) == ("mini", (16, 64), 2, 4)


def test_modes_as_json_and_as_a_smoke_test(asked, command, tmp_path, capsys):
    command("modes", "--smoke", "--before-us", "5", "--json", "--out", str(tmp_path))
    told = json.loads(capsys.readouterr().out)
    assert (told["kind"], told["evidence"]) == ("modes", "emulated")
    assert [row["chosen_over_better"] for row in told["tables"]["crossover"]] == [1, 1]
    assert (asked[0].tiles, asked[0].repeats, asked[0].before_us) == ((16, 64), 1, 5)


def test_a_word_that_is_no_command_is_refused(command):
    with pytest.raises(BadInput, match="did you mean modes"):
        command("mode")
