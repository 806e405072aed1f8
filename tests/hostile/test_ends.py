"""Signals and closed streams: a command ends with its status, says so in one line, and leaves nothing half-written or running."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from workbench.paths import bundled_model
from workbench.schema import Status, list_runs

COMMAND = [sys.executable, "-m", "workbench.cli"]
LONG = {
    "generate": "generate --prompt ab --max-tokens 4000 --cache-bytes 8MiB --bandwidth-gbps 1 --set stop_at_eos=false",
    "trace": "trace --requests 9 --tokens 1000",
}
"""Commands that run long enough to be ended on their way."""


@pytest.fixture
def start(tmp_path, packed):
    """Starts a command line in a process of its own, results in `tmp_path`."""
    started = []

    def run(words, store=packed, **streams):
        environment = os.environ | {"WORKBENCH_RUNS": str(tmp_path / "runs"), "WORKBENCH_STORE": str(store)}
        environment |= {"WORKBENCH_TRACKING": "off", "TMPDIR": str(tmp_path)}
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
        started.append(subprocess.Popen([*COMMAND, *words], env=environment, text=True, **streams))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


def wait_for(happened):
    while not happened():
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("command", ["generate", "trace"])
def test_a_signal_ends_a_run_as_interrupted(command, number, start, tmp_path):
    process = start(LONG[command].split())
    wait_for(lambda: list((tmp_path / "runs").glob("*/*/environment.json")) or process.poll() is not None)
    process.send_signal(number)
    _, err = process.communicate()
    assert process.returncode == 130, err
    assert err.strip().splitlines()[-1] == "workbench: interrupted"
    assert "Traceback" not in err
    (run,) = list_runs(tmp_path / "runs")
    assert run.status is Status.INTERRUPTED
    assert not list(tmp_path.rglob("*.part"))


WRITING = {
    "pack": ("pack {model} --out {tmp}/packed", "packed/experts.em2.part", {"journal.part", "experts.em2.part"}),
    "bench io": ("bench io --file-bytes 512MiB", "storage-probe.*", set()),
}
"""Commands that write large files: the command line, the file that is being written, and the files that are left to resume."""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("command", WRITING)
def test_a_signal_leaves_no_file_but_what_is_resumed(command, number, start, tmp_path):
    line, written, resumed = WRITING[command]
    process = start(line.format(model=bundled_model(), tmp=tmp_path).split(), store=tmp_path / "store")
    wait_for(lambda: list(tmp_path.glob(written)) or process.poll() is not None)
    process.send_signal(number)
    _, err = process.communicate()
    if process.returncode == 0:
        # this process slept while the command came to its end
        resumed = set()
    else:
        assert process.returncode == 130, err
        assert err.strip().splitlines()[-1].startswith("workbench: interrupted")
    assert {path.name for path in (*tmp_path.rglob("*.part"), *tmp_path.rglob("storage-probe.*"))} <= resumed


IMPORTED = """
import builtins, os, signal, sys
plain, module = builtins.__import__, sys.argv.pop(1)
def imports(name, *others):
    if name == module:
        signal.raise_signal(signal.SIGINT)
    return plain(name, *others)
builtins.__import__ = imports
from workbench.start import main
main()
"""
"""The program, interrupted while it imports the module that its first argument names."""


@pytest.mark.parametrize("module", ["cyclopts", "workbench.experiments.generate"])
def test_an_interrupt_while_a_command_starts_is_quiet(module):
    words = [sys.executable, "-c", IMPORTED, module, "generate", "--prompt", "a"]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 130, ended.stderr
    assert ended.stderr in ("", "workbench: interrupted\n")


def test_a_closed_standard_input_harms_no_command(packed, tmp_path):
    environment = os.environ | {"WORKBENCH_RUNS": str(tmp_path), "WORKBENCH_STORE": str(packed), "WORKBENCH_TRACKING": "off"}
    words = "generate --prompt ab --max-tokens 1 --cache-bytes 8MiB --bandwidth-gbps 1 --set attribution_tokens=0"
    line = f"exec {' '.join(COMMAND)} {words} <&-"
    ended = subprocess.run(["sh", "-c", line], env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


WORKERS = """
import os, time
from workbench.analysis.workers import completed
from workbench.interrupts import sigterm_as_interrupt
if __name__ == "__main__":
    with sigterm_as_interrupt():
        for _ in completed(time.sleep, [(0,), (0,), (600,), (600,)], 2):
            print("begun", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_workers_end_with_their_parent(number, tmp_path):
    (tmp_path / "parent.py").write_text(WORKERS)
    with subprocess.Popen(
        [sys.executable, "parent.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as parent:
        parent.stdout.readline()
        workers = psutil.Process(parent.pid).children(recursive=True)
        assert len(workers) >= 2
        parent.send_signal(number)
        parent.wait()
        _, alive = psutil.wait_procs(workers, timeout=60)
        assert not alive
