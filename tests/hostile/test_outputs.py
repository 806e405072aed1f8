"""Outputs: `--out` of any command replaces files only, before any work; a full disk is named and leaves no part of a file."""

import inspect
import os
import re
import resource
from contextlib import contextmanager

import pytest

from tests.hostile.commands import SMALL, app, every_command, line_of


def function_of(command):
    found = app
    for word in command.split():
        found = found[word]
    return found.default_command


def about_out(command):
    return re.search(r"\nout\n +([^;,]*)", inspect.getdoc(function_of(command))).group(1)


WRITING = [command for command in every_command() if "out" in inspect.signature(function_of(command)).parameters]
"""Commands with `--out`."""
FOLDERS = [command for command in WRITING if "older" in about_out(command)]
"""Those whose output is a folder."""


@pytest.fixture
def sound(tmp_path, sound_run, write_trace, routes_small):
    """Input of every command that writes: a finished run, a route trace, and rows of another program."""
    routes = write_trace(tmp_path / "routes.parquet", routes_small)
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"request":0,"position":0,"layer":{n},"ids":[1,2]}}\n' for n in (0, 1)))
    return {"run": sound_run, "routes": routes, "rows": tmp_path / "rows.jsonl", "model": "data/qwen4exp-mini-4bit"}


@pytest.fixture
def line(sound, tmp_path, monkeypatch, mini_store):
    """The small command line of a command with `--out` as given; results of others lie in `tmp_path` too."""
    monkeypatch.setenv("WORKBENCH_RUNS", str(tmp_path / "runs"))

    def make(command, out):
        words = line_of(command, tmp=tmp_path, **sound).replace(" --help", "").split()
        if "--out" in words:
            at = words.index("--out")
            del words[at : at + 2]
        return " ".join([*words, "--out", str(out)])

    return make


ODD = {
    "pipe": os.mkfifo,
    "device": lambda path: os.mknod(path, 0o600 | 0o020000, os.makedev(1, 3)),
    "folder": os.mkdir,
    "link to a file": lambda path: path.symlink_to(path.with_name("other")),
    "link to nothing": lambda path: path.symlink_to(path.with_name("nothing")),
    "link to itself": lambda path: path.symlink_to(path),
    "under a file": lambda path: None,
}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("command", WRITING)
def test_an_output_replaces_nothing_but_a_file(command, odd, line, end, tmp_path):
    if odd == "folder" and command in FOLDERS:
        return
    (tmp_path / "other").write_text("other")
    target = tmp_path / "out"
    if odd == "device" and os.geteuid():
        pytest.skip("only root makes devices")
    ODD[odd](target)
    before = os.lstat(target) if odd != "under a file" else None
    ended = end(line(command, target if before else tmp_path / "other" / "out"))
    ended.check()
    if before:
        now = os.lstat(target)
        assert (now.st_mode, now.st_ino) == (before.st_mode, before.st_ino)
    assert (tmp_path / "other").read_text() == "other"
    assert not (tmp_path / "nothing").exists()
    assert not list(tmp_path.rglob("*.part"))
    assert ended.status == 2, ended
    assert str(tmp_path) in ended.err.splitlines()[-1], ended.err
    assert "--out" in ended.err, "it is refused before any work"


@contextmanager
def full_disk(max_bytes):
    """No file grows beyond `max_bytes`: each write there fails, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


RESUMED = {"pack", "slice"}
"""Commands whose parts are what they resume from."""


LONG = [command for command in WRITING if "--help" in SMALL.get(command, "")]
"""Commands that run long: only their first write fails."""


@pytest.mark.parametrize(
    ("command", "max_bytes"), [(command, size) for command in WRITING for size in ([0] if command in LONG else [0, 300, 3000])]
)
def test_a_full_disk_leaves_no_part_of_a_file(command, max_bytes, line, end, tmp_path):
    out = tmp_path / "out"
    words = line(command, out)
    with full_disk(max_bytes):
        ended = end(words)
    ended.check()
    assert ended.status in (2, 3) or max_bytes
    assert ended.status == 0 or str(tmp_path) in ended.err.splitlines()[-1], ended.err
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    if command not in RESUMED:
        assert not [path for path in left if path.suffix == ".part" or path.stat().st_size == 0], left
