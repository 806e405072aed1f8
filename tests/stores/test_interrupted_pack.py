"""`workbench pack` is killed at a named system call, or runs out of disk; the same command then makes the same bytes."""

import os
import platform
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.errors import BadInput, UnmetPrerequisite
from workbench.paths import bundled_model
from workbench.stores import open_store
from workbench.stores.pack import pack
from workbench.stores.verify import verify

TRACER = Path(__file__).parent / "trace_syscalls.py"
PACK = [sys.executable, "-c", "from workbench.cli import main; main()", "pack", str(bundled_model()), "--out"]
FORBIDDEN = 99
KILLED = 128 + 9

pytestmark = pytest.mark.skipif(
    platform.system() != "Linux" or platform.machine() not in ("x86_64", "aarch64"), reason="needs Linux ptrace and seccomp"
)


def traced(*words):
    done = subprocess.run([sys.executable, str(TRACER), *map(str, words)], capture_output=True, text=True)
    if done.returncode == FORBIDDEN:
        pytest.skip("this machine forbids ptrace or seccomp filters")
    return done


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """An uninterrupted pack: its folder, its files, and the names of its file system calls in order."""
    folder = tmp_path_factory.mktemp("whole") / "store"
    done = traced("count", "--", *PACK, folder)
    assert done.returncode == 0, done.stderr
    verify(folder)
    calls = [line for line in done.stdout.splitlines() if line in ("pwrite64", "fsync", "ftruncate", "rename", "unlink")]
    return folder, contents(folder), calls


def before_rename(calls):
    """Calls between the last write to a file and its rename, the rename itself included; the manifest's come first."""
    points, since_write = [], []
    for n, name in enumerate(calls):
        since_write = [] if name == "pwrite64" else [*since_write, n]
        if name == "rename":
            points.append(since_write)
            since_write = []
    assert len(points) == 9
    return [n for of_one_file in reversed(points) for n in reversed(of_one_file)]


def is_no_half_store(folder, whole):
    """A folder is refused, or it is complete."""
    try:
        open_store(folder)
    except UnmetPrerequisite:
        with pytest.raises((UnmetPrerequisite, BadInput)):
            verify(folder)
        return
    assert whole.items() <= contents(folder).items()


def kill_and_resume(folder, reference, *kills):
    _, whole, _ = reference
    for kill in kills:
        assert traced("kill", *kill, "--", *PACK, folder).returncode in (0, KILLED)
        is_no_half_store(folder, whole)
    pack(bundled_model(), folder)
    assert contents(folder) == whole
    verify(folder)


@pytest.mark.parametrize("point", range(4))
def test_killed_between_the_last_write_and_the_rename(tmp_path, reference, point):
    n = before_rename(reference[2])[point]
    assert traced("kill", n, "--", *PACK, tmp_path / "store").returncode == KILLED
    kill_and_resume(tmp_path / "store", reference)


@pytest.mark.soak
@pytest.mark.parametrize("point", range(4, 18))
def test_killed_between_any_last_write_and_its_rename(tmp_path, reference, point):
    n = before_rename(reference[2])[point]
    assert traced("kill", n, "--", *PACK, tmp_path / "store").returncode == KILLED
    kill_and_resume(tmp_path / "store", reference)


def seeded_kills(seed, num_calls):
    """Two kills in a row, each at a call or up to 20 ms after it."""
    rng = random.Random(seed)
    return [(rng.randrange(num_calls), *([rng.uniform(0, 20)] if rng.random() < 0.5 else [])) for _ in range(2)]


@pytest.mark.parametrize("seed", range(2))
def test_killed_twice_anywhere(tmp_path, reference, seed):
    kill_and_resume(tmp_path / "store", reference, *seeded_kills(seed, len(reference[2])))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 16))
def test_killed_twice_anywhere_for_long(tmp_path, reference, seed):
    kill_and_resume(tmp_path / "store", reference, *seeded_kills(seed, len(reference[2])))


def test_interrupted_from_the_keyboard(tmp_path, reference):
    _, whole, calls = reference
    folder = tmp_path / "store"
    done = traced("interrupt", calls.index("rename") - 20, "--", *PACK, folder)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "workbench: interrupted; the same command resumes\n"
    is_no_half_store(folder, whole)
    kill_and_resume(folder, reference)


FULL_DISK = """
set -u
mount -t tmpfs -o size={size} tmpfs {disk} || exit 99
{pack} {disk}/store 2> {logs}/full.err > {logs}/full.out
echo $? > {logs}/full.status
ls {disk}/store > {logs}/left 2>/dev/null
workbench() {{ "{python}" -c 'from workbench.cli import main; main()' "$@"; }}
workbench verify {disk}/store > /dev/null 2> {logs}/verify.err
echo $? > {logs}/verify.status
rm -f {disk}/filler
mount -o remount,size=200m {disk}
{plain} {disk}/store > /dev/null 2> {logs}/again.err
echo $? > {logs}/again.status
cp -r {disk}/store {logs}/store
"""


def on_a_small_disk(tmp_path, size, pack):
    """Packs on a tmpfs of `size` in a mount namespace of its own, then again with room; returns what was left by name."""
    disk, logs = tmp_path / "disk", tmp_path / "logs"
    disk.mkdir()
    logs.mkdir()
    command = " ".join(f"'{word}'" for word in pack)
    plain = " ".join(f"'{word}'" for word in PACK)
    script = FULL_DISK.format(size=size, disk=disk, logs=logs, pack=command, plain=plain, python=sys.executable)
    own_namespace = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*own_namespace, "true"], capture_output=True).returncode:
        pytest.skip("this machine forbids mount namespaces")
    done = subprocess.run([*own_namespace, "sh", "-c", script], capture_output=True, text=True)
    if done.returncode == FORBIDDEN:
        pytest.skip("this machine forbids mounting a tmpfs")
    return {path.name: path.read_text() for path in logs.iterdir() if path.is_file()}, logs / "store"


@pytest.mark.parametrize("write", [5])
def test_a_disk_that_fills_up_midway(tmp_path, reference, write):
    _, whole, calls = reference
    n = [n for n, name in enumerate(calls) if name == "pwrite64"][write]
    filler = tmp_path / "disk" / "filler"
    left, store = on_a_small_disk(tmp_path, "80m", [sys.executable, str(TRACER), "fill", str(n), str(filler), "--", *PACK])
    assert left["full.status"] == "3\n", left
    assert left["full.out"] == ""
    assert left["full.err"].count("\n") == 1
    assert "the disk is full" in left["full.err"]
    assert "journal.part" in left["left"].split()
    assert "manifest.json" not in left["left"].split()
    assert (left["verify.status"], left["verify.err"].count("\n")) == ("3\n", 1)
    assert left["again.status"] == "0\n", left
    assert contents(store) == whole


@pytest.mark.soak
@pytest.mark.parametrize("write", [0, 1, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18])
def test_a_disk_that_fills_up_anywhere(tmp_path, reference, write):
    test_a_disk_that_fills_up_midway(tmp_path, reference, write)


def test_a_disk_that_is_too_small_is_refused_before_the_first_byte(tmp_path, reference):
    left, store = on_a_small_disk(tmp_path, "40m", PACK)
    assert left["full.status"] == "3\n"
    assert left["full.err"].count("\n") == 1
    assert "MiB are free" in left["full.err"]
    assert left["left"].split() == ["journal.part"] or left["left"] == ""
    assert contents(store) == reference[1]
