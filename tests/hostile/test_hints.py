"""Messages name commands, flags and settings that exist."""

import ast
import re
from pathlib import Path

import pytest

import workbench
from tests.hostile.commands import app, every_command
from tests.hostile.values import BUILT, settings_of

FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
SETTING = re.compile(r"(?<![\w.-])([a-z_]+(?:\.[a-z_]+)*)=(?![=\"])")
COMMAND = re.compile(r"`workbench ([a-z]+(?: [a-z]+)?)")
ANY = {"key"}
"""Stands for any setting."""


def messages(path):
    """The texts with spaces in a module that people may see: no documentation of code, no drawings."""
    tree = ast.parse(path.read_text())
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in documentation:
            continue
        if " " in node.value.strip() and "<" not in node.value:
            yield node.value


def flags():
    groups = [app, *(app[word] for word in app if not word.startswith("-"))]
    known = {name for group in groups for name in group if name.startswith("-")}
    for command in every_command():
        found = app
        for word in command.split():
            found = found[word]
        known |= {name for argument in found.assemble_argument_collection() for name in argument.names}
    return known | {name for argument in app.assemble_argument_collection() for name in argument.names}


@pytest.fixture(scope="module")
def known():
    paths = {path for kind in BUILT for path in settings_of(kind)}
    words = {command.split()[0] for command in every_command()}
    return flags(), {".".join(path) for path in paths} | ANY, words


MODULES = sorted(Path(workbench.__file__).parent.rglob("*.py"))


def test_hints_name_what_exists(known):
    flags, settings, commands = known
    wrong, seen = [], 0
    for path in MODULES:
        for text in messages(path):
            named = [(word, flags) for word in FLAG.findall(text)] + [(word, settings) for word in SETTING.findall(text)]
            named += [(word.split()[0], commands) for word in COMMAND.findall(text)]
            wrong += [(path.name, word, text[:80]) for word, known in named if word not in known]
            seen += len(named)
    assert seen > 50
    assert not wrong
