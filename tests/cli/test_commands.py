import errno

import pytest
from cyclopts import App

from workbench import cli
from workbench.cli.commands import _MODULES, register
from workbench.loading.transfer import RequestFailed


def names(app):
    return {name for name in app if not name.startswith("-")}


def test_the_list_names_every_command_of_every_module():
    for module, commands in _MODULES.items():
        app = App()
        register(app, commands[0])
        assert names(app) == set(commands), module


def test_an_unknown_word_registers_everything():
    app = App()
    register(app, "no-such-word")
    assert names(app) == {command for commands in _MODULES.values() for command in commands}


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RequestFailed("expert bytes of layer 3 could not be read: checksum differs"), "layer 3 could not be read"),
        (OSError(errno.ENOSPC, "No space left on device", "runs/x"), "No space left on device: 'runs/x'"),
        (PermissionError(errno.EACCES, "Permission denied", "data"), "Permission denied: 'data'"),
    ],
)
def test_what_a_disk_does_is_told_in_one_line(monkeypatch, capsys, error, words):
    def fail(tokens, **_):
        raise error

    monkeypatch.setattr(cli, "app", fail)
    assert cli.run(["generate"]) == 2
    told = capsys.readouterr().err
    assert words in told
    assert told.count("\n") == 1
