"""Run folders of any state: a damaged one is skipped with one line that names it, and blocks no command."""

import json
import os
import shutil
import subprocess
import sys
import time

import pytest

from tests.hostile.commands import every_command, line_of
from workbench.schema import list_runs, results
from workbench.schema.results import damaged_runs


def rewrite(name, change):
    """A damage that changes a JSON file."""

    def damage(folder):
        content = json.loads((folder / name).read_text())
        change(content)
        (folder / name).write_text(json.dumps(content))

    return damage


def replace(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def become(name, make):
    def damage(folder):
        (folder / name).unlink()
        make(folder / name)

    return damage


DAMAGES = {
    "result cut": lambda folder: os.truncate(folder / "result.json", 100),
    "result empty": replace("result.json", b""),
    "result noise": replace("result.json", bytes(range(256))),
    "result list": replace("result.json", b"[]"),
    "result deep": replace("result.json", b"[" * 100_000),
    "result newer": rewrite("result.json", lambda content: content.update(version=99)),
    "result of another type": rewrite("result.json", lambda content: content.update(metrics=3)),
    "result a folder": become("result.json", os.mkdir),
    "result a pipe": become("result.json", os.mkfifo),
    "result a loop": become("result.json", lambda path: path.symlink_to(path)),
    "environment cut": lambda folder: os.truncate(folder / "environment.json", 50),
    "environment without tags": rewrite("environment.json", lambda content: content.pop("tags")),
    "environment of another type": rewrite("environment.json", lambda content: content.update(started_unix_s="noon")),
    "environment without a date": rewrite("environment.json", lambda content: content.update(started_unix_s=float("nan"))),
    "environment a pipe": become("environment.json", os.mkfifo),
    "configuration gone": lambda folder: (folder / "config.toml").unlink(),
    "configuration noise": replace("config.toml", b"\xff="),
}


@pytest.fixture
def runs(tmp_path, monkeypatch, packed):
    monkeypatch.setenv("WORKBENCH_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("WORKBENCH_STORE", str(packed))
    results._SAID.clear()
    return tmp_path / "runs"


def plant(sound, runs, name, damage=lambda folder: None):
    folder = shutil.copytree(sound, runs / "generate" / name)
    rewrite("environment.json", lambda content: content.update(run_id=name))(folder)
    rewrite("result.json", lambda content: content.update(run_id=name))(folder)
    damage(folder)
    return folder


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_is_skipped_in_one_line(damage, sound_run, runs, capsys, end):
    sound = plant(sound_run, runs, "1-sound")
    bad = plant(sound_run, runs, "2-bad", DAMAGES[damage])
    capsys.readouterr()
    assert [run.path for run in list_runs(runs)] == [sound]
    assert [run.path for run in list_runs(runs)] == [sound]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("skipped a damaged run folder: ")
    assert str(bad) in line
    assert [path for path, _ in damaged_runs(runs)] == [bad]
    for words in ("timeline {run} --token 1", "bundle {run} --out {run}/x.tar"):
        for name in ("generate/2-bad", str(bad)):
            ended = end(words.format(run=name))
            ended.check()
            assert ended.status == 2, (words, name)


READS_NO_RUNS = {"lab", "plan", "geometry", "pack", "slice", "verify", "bench modes"} | {
    f"simulate {name}" for name in ("published", "machines", "misses", "twin", "sweep", "validate", "routes", "import")
}
"""Commands that take seconds and read no run folder besides their own."""


def test_commands_that_read_no_runs_exist():
    assert set(every_command()) >= READS_NO_RUNS


OF_ITS_OWN = {"track rebuild", "ui"}
"""Commands that end a store of MLflow or need a fresh one: a process has one for its life."""


@pytest.mark.parametrize("command", sorted(set(every_command()) - READS_NO_RUNS - OF_ITS_OWN))
def test_damaged_folders_block_no_command(command, sound_run, runs, end, tmp_path, monkeypatch):
    """All damages at once: each command ends as it does beside the sound run alone."""
    sound = plant(sound_run, runs, "0-sound")
    values = {"tmp": tmp_path, "run": sound, "store": os.environ["WORKBENCH_STORE"], "model": "data/qwen4exp-mini-4bit"}
    values |= {"routes": tmp_path / "none", "rows": tmp_path / "none", "bundle": tmp_path / "none"}
    alone = end(line_of(command, **values))
    shutil.rmtree(tmp_path / "packed", ignore_errors=True)
    shutil.rmtree(tmp_path / "slice", ignore_errors=True)
    for number, (name, damage) in enumerate(DAMAGES.items()):
        plant(sound_run, runs, f"{number + 1}-{name.replace(' ', '-')}", damage)
    beside = end(line_of(command, **values))
    beside.check()
    assert beside.status == alone.status, beside.err


def test_damaged_folders_are_left_out_when_all_is_filed_anew(sound_run, runs):
    plant(sound_run, runs, "0-sound")
    for number, (name, damage) in enumerate(DAMAGES.items()):
        plant(sound_run, runs, f"{number + 1}-{name.replace(' ', '-')}", damage)
    words = [sys.executable, "-m", "workbench.cli", "track", "rebuild"]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert [line.split()[1] for line in ended.stdout.splitlines()[2:]] == ["generate/0-sound"]
    assert ended.stderr.count("skipped a damaged run folder") == len(DAMAGES)


def test_doctor_reports_damaged_folders(sound_run, runs, end):
    plant(sound_run, runs, "bad", DAMAGES["result cut"])
    ended = end("doctor")
    assert "1 damaged folders are skipped" in ended.out


def test_a_run_dated_in_the_future_supersedes_none_and_says_so(sound_run, runs, capsys):
    old = plant(sound_run, runs, "1-old")
    later = {"started_unix_s": time.time() + 10**6}
    future = plant(sound_run, runs, "2-future", rewrite("environment.json", lambda content: content.update(later)))
    capsys.readouterr()
    assert [run.path for run in list_runs(runs)] == [future, old]
    assert f"{future} is dated in the future: it supersedes no other run" in capsys.readouterr().err
