"""Limits of the address space: every command is refused with the figure that it needs, and works from this figure on."""

import os
import re
import resource
import subprocess
import sys

import pytest

from tests.hostile.commands import every_command, line_of
from workbench import address_space, cli
from workbench.address_space import check_address_space
from workbench.errors import UnmetPrerequisite
from workbench.runtime.config import RuntimeConfig
from workbench.runtime.resident_engine import ResidentEngine
from workbench.runtime.streamed import StreamedEngine
from workbench.schema import EventLog
from workbench.units import MIB

NEEDED = re.compile(r"limits the address space to .* \(ulimit -v\), .* are needed: raise the limit with ulimit -v (\d+)")


@pytest.fixture
def limit(monkeypatch):
    """Sets the limit that the process reads, not the kernel's."""

    def change(num_bytes):
        monkeypatch.setattr(resource, "getrlimit", lambda _: (num_bytes, resource.RLIM_INFINITY))

    return change


def start(command, num_bytes, tmp_path):
    """Runs a command line in a process whose address space ends at `num_bytes`."""
    environment = os.environ | {"WORKBENCH_RUNS": str(tmp_path / "runs"), "WORKBENCH_TRACKING": "off"}
    return subprocess.run(
        [sys.executable, "-m", "workbench.cli", *command.split()],
        env=environment,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (num_bytes, num_bytes)),
    )


@pytest.mark.parametrize("size", [400, 900, 1300])
@pytest.mark.parametrize("command", ["generate --prompt ab", "simulate misses", "doctor"])
def test_a_process_with_too_little_is_refused_and_leaves_nothing(command, size, tmp_path):
    ended = start(command, size * MIB, tmp_path)
    assert ended.returncode == 3, ended.stderr
    (line,) = ended.stderr.splitlines()
    assert NEEDED.search(line)
    assert list(tmp_path.iterdir()) == []


def test_the_figure_that_is_named_suffices(tmp_path):
    command = "simulate twin loop --set routes.tokens=2 --set routes.layers=2 --set twin.num_slots=20"
    needed_kib = int(NEEDED.search(start(command, 400 * MIB, tmp_path).stderr)[1])
    ended = start(command, needed_kib * 1024, tmp_path)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("command", list(every_command()))
def test_every_command_is_refused(command, limit, capsys, monkeypatch, tmp_path):
    limit(1000 * MIB)
    words = line_of(command, tmp=tmp_path, store="s", model="m", routes="r", rows="r", run="r", bundle="b").split()
    monkeypatch.setattr(sys, "argv", ["workbench", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 3
    assert NEEDED.search(capsys.readouterr().err)


@pytest.mark.parametrize("engine", ["streamed", "resident"])
def test_a_model_needs_its_weights_and_cache_too(engine, limit, mini_store):
    def open_engine():
        if engine == "resident":
            return ResidentEngine(mini_store, EventLog())
        return StreamedEngine(mini_store, RuntimeConfig(cache_bytes=8 * MIB), EventLog())

    limit(0)
    with pytest.raises(UnmetPrerequisite) as without:
        check_address_space()
    with pytest.raises(UnmetPrerequisite) as refused:
        open_engine()
    alone_kib, needed_kib = (int(NEEDED.search(str(error.value))[1]) for error in (without, refused))
    assert needed_kib > alone_kib + 8 * 1024
    limit(needed_kib * 1024 - 2048)
    with pytest.raises(UnmetPrerequisite):
        open_engine()
    limit(needed_kib * 1024)
    with open_engine():
        pass


def test_more_cores_need_more(limit, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    limit(address_space._BASE_BYTES)
    with pytest.raises(UnmetPrerequisite, match=r"17\.5 GiB are needed"):
        check_address_space()
    limit(resource.RLIM_INFINITY)
    check_address_space(2**60)
