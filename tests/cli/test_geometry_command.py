import json

import pytest
from cyclopts import App

from workbench.cli import geometry
from workbench.errors import BadInput
from workbench.paths import bundled_model


@pytest.fixture
def command():
    app = App(name="workbench", result_action="return_value")
    geometry.register(app)
    return lambda *words: app([*words], exit_on_error=False, print_error=False)


@pytest.fixture
def told(command, capsys):
    def told(*words):
        command("geometry", *words, "--json")
        return json.loads(capsys.readouterr().out)

    return told


def test_flash_next_in_numbers(told):
    shown = told("flash-next", "--bandwidth-gbps", "10")
    owners = {row["owner"]: row for row in shown["owners"]}
    assert owners["routed_experts"]["bytes"] == 49 * 512 * 2_764_800
    assert owners["ple_tables"]["bytes"] == 320_001_536 * 100
    assert owners["total"]["bytes"] == sum(row["bytes"] for name, row in owners.items() if name != "total")
    assert shown["routed_bytes_per_token"] == 1_327_104_000
    assert shown["ple_page_bytes_per_token"] == 16 * 4096
    assert shown["bound_tps_nothing_cached"] == pytest.approx(1e10 / (1_327_104_000 + 65_536))


def test_mini_is_the_bundled_folder(told):
    by_name, by_folder = told("mini"), told(str(bundled_model()))
    assert by_name.pop("what") == "mini"
    assert by_folder.pop("what") == str(bundled_model())
    assert by_name == by_folder
    # rows of 16 values can't be affine 4-bit
    assert by_name["ple_row_bytes_per_token"] == 16 * 32


def test_without_a_bandwidth_there_is_no_bound_but_a_word_on_how_to_get_one(command, capsys):
    command("geometry", "slice")
    out = capsys.readouterr().out
    assert "bound_tps" not in out
    assert "--bandwidth-gbps" in out
    assert "| record_bytes " in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["flash-nxt"], r"no such profile or folder: 'flash-nxt'; did you mean flash-next\?"),
        (["/no/such/place"], r"write mini, slice, flash-next or a folder with a config\.json"),
        (["mini", "--bandwidth-gbps", "0"], "must be above 0"),
    ],
)
def test_mistakes_are_named(command, words, message):
    with pytest.raises(BadInput, match=message):
        command("geometry", *words)


def test_a_folder_without_a_config_is_refused(command, tmp_path):
    with pytest.raises(BadInput, match=r"no config\.json"):
        command("geometry", str(tmp_path))
