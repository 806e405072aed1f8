"""Odd values of options, settings, files and variables: refused in one line before anything is made, or taken as they are."""

import itertools
import math
from typing import get_origin

import pytest

from tests.hostile.commands import every_command
from tests.hostile.values import (
    BUILT,
    DIGITS,
    NO_INTEGER,
    NO_NUMBER,
    STOPPED,
    VALUES,
    WORDS,
    options_of,
    settings_of,
    stop_before_work,
    tree,
    with_option,
    words_of,
)  # fmt: skip
from workbench.config import ConfigError

MOST_CHARACTERS = 700


def is_one_line(text):
    return len(text.splitlines()) == 1 and text.isprintable() and len(text) <= MOST_CHARACTERS


def nested(path, value):
    for name in reversed(path):
        value = {name: value}
    return value


def at(made, path):
    for name in path:
        made = made[name]
    return made


def is_as_given(value, made):
    """Whether a setting was taken as it is: no other type, no value that no number can be."""
    if isinstance(value, dict):
        return isinstance(made, dict) and all(is_as_given(each, made.get(key)) for key, each in value.items())
    if isinstance(value, list):
        return isinstance(made, list) and len(made) == len(value) and all(map(is_as_given, value, made))
    if (isinstance(value, float) and not math.isfinite(value)) or value == 10**400:
        return False
    return (type(value) is type(made) or (type(value) is int and type(made) is float)) and made == value


def is_well_built(kind, sound, path, value):
    """Whether a configuration with an odd value is refused in one line, or has the value as it was given."""
    try:
        made = kind.build({**sound, **nested(path, value)})
    except ConfigError as error:
        return is_one_line(str(error))
    except Exception:
        return False
    if path[-1] == "seed" and value == -1:
        return False
    return is_as_given(value, at(made.model_dump(mode="json"), path))


@pytest.mark.parametrize("kind", BUILT, ids=lambda kind: kind.__name__)
def test_every_setting_is_taken_as_it_is_or_refused(kind):
    tries = itertools.product(settings_of(kind), VALUES)
    assert not [(path, value) for path, value in tries if not is_well_built(kind, BUILT[kind], path, value)]


@pytest.fixture
def values(tmp_path, packed, write_trace, routes_small, monkeypatch):
    monkeypatch.setenv("WORKBENCH_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("WORKBENCH_STORE", str(packed))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.toml").write_text("bandwidth_gbps = 1\n")
    write_trace(tmp_path / "routes.parquet", routes_small)
    stop_before_work(monkeypatch)
    made = {"tmp": tmp_path, "base": tmp_path / "base.toml", "store": packed, "routes": tmp_path / "routes.parquet"}
    return made | {"model": "none", "rows": "none.jsonl", "run": "none", "bundle": "none"}


def ends_well(ended, option, kinds, word):
    """Whether a command ended well that was given an odd value of an option."""
    refused = NO_INTEGER if int in kinds else NO_NUMBER if float in kinds else {"caf\udce9"}
    if tuple in map(get_origin, kinds):
        # cyclopts takes a list in JSON as several values
        refused = refused - {"[1]"}
    if word in refused or (word == "-1" and option == "--seed"):
        return ended.status == 2 and STOPPED not in ended.err and is_one_line(ended.err.strip())
    if ended.status in (0, 1, 4):
        return True
    return ended.status in (2, 3) and is_one_line(ended.err.strip().splitlines()[-1])


@pytest.mark.parametrize("command", [each for each in every_command() if list(options_of(each))])
def test_odd_options_end_in_one_line_and_leave_nothing(command, values, end):
    before = tree(values["tmp"])
    wrong = []
    for (option, kinds), word in itertools.product(options_of(command), WORDS):
        ended = end(with_option(words_of(command, **values), option, word))
        if not ends_well(ended, option, kinds, word) or tree(values["tmp"]) != before:
            wrong.append((option, word[:20], ended.status, ended.err[-200:]))
            before = tree(values["tmp"])
    assert not wrong


FILES = {
    "Latin-1": b'profile = "caf\xe9"',
    "digits": b"max_tokens = " + DIGITS.encode(),
    "date": b"profile = 2026-01-01",
    "date in a list": b"profile = [2026-01-01T00:00:00Z]",
    "table for a number": b"[seed]\na = 1",
    "number for a table": b"runtime = 0\nroutes = 0\ntwin = 0\nsampling = 0",
    "list for a table": b"runtime = [1]\nroutes = []\ntwin = ['a']\nsampling = [[1]]",
    "text for a table": b"runtime = 'ab'\nroutes = ''\ntwin = 'a'\nsampling = '0'",
    "nan": b"bandwidth_gbps = nan\ntoken_ms = nan\nprobe_s = nan",
    "inf": b"bandwidth_gbps = inf\ntoken_ms = inf\nprobe_s = inf",
    "true": b"max_tokens = true\nworkers = true\nturns = true\nrequests = true",
    "deep": b"a = " + 10_000 * b"[",
    "many": "\n".join(f"unknown_{number} = 1" for number in range(1000)).encode(),
}
"""Odd TOML files; none of them is a configuration of any command."""


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    ("command", "option"),
    [(each, option) for each in every_command() for option, _ in options_of(each) if option in ("--config", "--base")],
)
def test_odd_configuration_files_end_in_one_line(command, option, name, values, end):
    (values["tmp"] / "odd.toml").write_bytes(FILES[name])
    ended = end(with_option(words_of(command, **values), option, values["tmp"] / "odd.toml"))
    assert ended.status == 2, ended.err[-300:]
    assert is_one_line(ended.err.strip()), ended.err[:300]


VARIABLES = {
    "WORKBENCH_HOME": (),
    "WORKBENCH_RUNS": (),
    "WORKBENCH_STORE": (),
    "WORKBENCH_ARM": ("nan", "1", "[]", "{", '{"a": 1}', '{"a": NaN}', "caf\udce9", DIGITS, "a\nb"),
    "WORKBENCH_TRACKING": ("nan", "1", "[]", "{", '{"a": 1}', '{"a": NaN}', DIGITS, "a\nb", "true", "of"),
    "MLFLOW_TRACKING_URI": ("nan", "1", "[]", "{", '{"a": 1}', '{"a": NaN}', DIGITS, "a\nb", "true", "of"),
}
"""Environment variables, and their values that can't be used; a byte that is not UTF-8 never can."""
ODD = sorted({"caf\udce9", "1", "a\nb", "/dev/null", DIGITS, "", *(word for words in VARIABLES.values() for word in words)})


@pytest.mark.parametrize("variable", VARIABLES)
@pytest.mark.parametrize("command", ["generate", "simulate misses", "verdicts", "plan", "gate", "report", "timeline"])
def test_odd_variables_end_in_one_line(command, variable, values, end, monkeypatch):
    wrong = []
    for value in ODD:
        with monkeypatch.context() as patch:
            patch.setenv(variable, value)
            ended = end(words_of(command, **values))
        refused = value == "caf\udce9" or value in VARIABLES[variable]
        well = ended.status in ((2,) if refused else (0, 2, 3)) and (not ended.err or is_one_line(ended.err.strip()))
        wrong += [] if well else [(value[:20], ended.status, ended.err[-200:])]
    assert not wrong
