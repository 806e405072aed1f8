"""Foreign files: a path is a name and never a pattern, and no pipe, device or damaged file blocks or crashes a command."""

import json
import os
import re
import shlex
import shutil
from pathlib import Path

import pytest

import workbench
from tests.hostile.commands import app, every_command, line_of
from workbench.paths import bundled_model
from workbench.schema import list_runs, read_events, read_routes
from workbench.schema.parquet import read_parquet

FILES = {
    "generate --bandwidth-gbps 1 --prompt-file {file}",
    "generate --bandwidth-gbps 1 --turns {file}",
    "trace --tokens 1 --prompt-file {file}",
    "generate --bandwidth-gbps 1 --prompt a --config {file}",
    "generate --bandwidth-gbps 1 --prompt a --set runtime.policy={file}:Class",
    "generate --bandwidth-gbps 1 --prompt a --set runtime.envelope={file}.json",
    "abba --base {file}",
    "simulate sweep --config {file}",
    "simulate twin --config {file}",
    "simulate validate --config {file}",
    "simulate misses {file}",
    "simulate twin --envelope {file}.json",
    "simulate twin --stages {file}",
    "simulate import {file}.jsonl --layers 2 --experts 4 --top-k 2 --out {out}",
    "simulate import {file}.parquet --layers 2 --experts 4 --top-k 2 --out {out}",
    "gate b_locality --set trace={file} --smoke",
    "check {file}",
    "verify {file}",
    "timeline {file} --token 0",
    "bundle {file}",
    "plan --machine {file}",
    "pack {file} --out {out}",
}
"""Command lines that name an input file; every option of type Path is among them, as a test holds."""


def paths_of(command):
    """Options and arguments of a command that are paths, outputs left out."""
    found = app
    for word in command.split():
        found = found[word]
    hints = found.default_command.__annotations__
    return {name for name, kind in hints.items() if "Path" in str(kind) and name not in ("out", "return")}


def test_every_input_file_of_a_command_is_tried():
    for command in every_command():
        lines = [line for line in FILES if line.startswith(f"{command} ")]
        options = {name for name in paths_of(command) if any(f"--{name.replace('_', '-')} " in line for line in lines)}
        arguments = paths_of(command) - options
        assert len(arguments) <= 1, (command, arguments)
        assert not arguments or lines, command


@pytest.fixture(params=["pipe", "device", "folder", "empty", "noise", "deep", "huge"])
def odd_file(request, tmp_path):
    """The stem of odd files with every suffix that commands ask for."""
    for suffix in ("", ".json", ".jsonl", ".parquet"):
        path = tmp_path / f"odd{suffix}"
        match request.param:
            case "pipe":
                os.mkfifo(path)
            case "device":
                path.symlink_to("/dev/zero")
            case "folder":
                path.mkdir()
            case "empty":
                path.touch()
            case "noise":
                path.write_bytes(bytes(range(256)) * 20)
            case "deep":
                path.write_text("[" * 100_000)
            case "huge":
                with path.open("wb") as file:
                    file.truncate(1 << 42)
    return tmp_path / "odd"


@pytest.mark.parametrize("line", sorted(FILES))
def test_odd_input_files_end_in_one_line(line, odd_file, end, tmp_path, monkeypatch, mini_store):
    if odd_file.is_file() and odd_file.stat().st_size == 0 and re.search("--config|--base", line):
        # an empty configuration is a sound one: the defaults
        return
    monkeypatch.setenv("WORKBENCH_RUNS", str(tmp_path / "runs"))
    ended = end(line.format(file=odd_file, out=tmp_path / "out"))
    ended.check()
    assert ended.status in (2, 3), ended
    assert not list(tmp_path.rglob("*.part"))


BRACKETS = "data [ab] *.parquet"


def test_brackets_and_stars_in_a_name_are_characters(tmp_path, write_trace, routes_small):
    write_trace(tmp_path / "data a x.parquet", routes_small[:, ::-1])
    write_trace(tmp_path / BRACKETS, routes_small)
    frame, _ = read_routes(tmp_path / BRACKETS)
    assert frame["experts"].list.to_array(2).to_numpy().reshape(routes_small.shape).tolist() == routes_small.tolist()
    assert read_parquet(tmp_path / BRACKETS).equals(frame)


def test_a_pattern_opens_nothing(tmp_path, write_trace, routes_small):
    write_trace(tmp_path / "one.parquet", routes_small)
    for read in (read_parquet, read_routes, read_events):
        with pytest.raises(ValueError, match=r"no such file: .*\*\.parquet"):
            read(tmp_path / "*.parquet")


SLOW = {"simulate published", "simulate machines", "track rebuild", "ui"}
"""Commands of many seconds: two read and write no file, two import MLflow (`tests/tracking` files runs of a folder like this)."""


def test_every_command_works_in_a_folder_named_like_a_pattern(end, packed, write_trace, routes_small, tmp_path, monkeypatch):
    folder = tmp_path / "[a]*?{b} ~#%20x=1"
    folder.mkdir()
    monkeypatch.setenv("WORKBENCH_RUNS", str(folder / "[r]uns"))
    monkeypatch.setenv("WORKBENCH_STORE", str(shutil.copytree(packed, folder / "[s]tore")))
    monkeypatch.chdir(folder)
    rows = [{"request": 0, "position": 0, "layer": layer, "ids": [1, 2]} for layer in (0, 1)]
    (folder / "[r]*.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    values = {"routes": write_trace(folder / "[r]*.parquet", routes_small), "rows": folder / "[r]*.jsonl", "tmp": folder}
    values |= {"model": bundled_model(), "store": folder / "[s]tore", "bundle": folder / "run.bundle.tar", "run": ""}
    for command in every_command():
        if command not in SLOW:
            # made by `generate`, which comes before the commands that need a run
            values["run"] = next((run.path for run in list_runs(folder / "[r]uns", "generate")), "")
            ended = end(line_of(command, **{name: shlex.quote(str(value)) for name, value in values.items()}))
            assert ended.status == 0, (command, ended.err)


def test_a_plugin_behind_a_loop_of_links_is_refused(end, tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_RUNS", str(tmp_path / "runs"))
    (tmp_path / "loop.py").symlink_to(tmp_path / "loop.py")
    ended = end(f"simulate twin --set twin.predictor={tmp_path}/loop.py:Class")
    ended.check()
    assert ended.status == 2


def test_stage_times_that_can_not_be_read_leave_no_run(end, tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_RUNS", str(tmp_path / "runs"))
    end(f"simulate twin loop --stages {tmp_path}/none.json").check()
    assert not list(tmp_path.iterdir())


def test_one_module_calls_the_readers_of_polars():
    for path in Path(workbench.__file__).parent.rglob("*.py"):
        if path.name != "parquet.py":
            assert not re.search(r"pl\.(read|scan)_", path.read_text()), path
