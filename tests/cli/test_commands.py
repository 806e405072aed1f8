from cyclopts import App

from workbench.cli.commands import _MODULES, register


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
