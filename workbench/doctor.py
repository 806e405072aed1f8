"""Checks of this machine: one finding per check, with the command that fixes it. Each check tries the operation itself."""

import ast
import importlib.metadata
import importlib.util
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import psutil

from workbench import paths
from workbench.errors import BadInput, UnmetPrerequisite
from workbench.hardware import free_disk_bytes, huge_page_bytes
from workbench.prompts import load_prompts
from workbench.readers.files import FileTable, aligned_buffer
from workbench.schema import Status, list_runs
from workbench.schema.results import damaged_runs
from workbench.stores import open_store
from workbench.tracking.locks import filing
from workbench.tracking.store import Store
from workbench.units import GIB, MIB, PAGE_BYTES, format_bytes

_OLDEST_PYTHON = (3, 11)
_LEAST_DISK_BYTES, _AMPLE_DISK_BYTES = 1 * GIB, 12 * GIB
"""Free disk for the mini store and its results; free disk for the slice store and Gate A's probe file as well."""
_LEAST_MEMORY_BYTES = 2 * GIB
_PACKAGES = ("mlx", "numpy", "polars", "mlflow", "tokenizers", "safetensors", "jupyterlab", "transformers")
_HUGE_PAGES = "/sys/kernel/mm/transparent_hugepage/enabled"
_SET_UP = "make .venv/.develop"


class Level(StrEnum):
    """Outcome of a check."""

    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Result of one check; `fix` is the command to type, empty when nothing is missing."""

    check: str
    level: Level
    found: str
    fix: str = ""


def examine() -> list[Finding]:
    """Runs every check; a check that raises is reported as a failure."""
    return [_safely(name, check) for name, check in _CHECKS.items()]


def unproven(tests: Path) -> list[str]:
    """Claims of the tests marked `apple`, which only a Mac runs: on other machines they are unproven."""
    claims = []
    for path in sorted(tests.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.apple":
                claims.append(str(ast.literal_eval(node.args[0])))
    return claims


def _safely(name: str, check: Callable[[], tuple[Level, str, str]]) -> Finding:
    try:
        level, found, fix = check()
    except Exception as error:
        level, found, fix = Level.FAIL, f"{type(error).__name__}: {error}".splitlines()[0], _SET_UP
    return Finding(check=name, level=level, found=found, fix=fix)


def _python() -> tuple[Level, str, str]:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < _OLDEST_PYTHON:
        return Level.FAIL, version, "make clean, then make PYTHON=/path/to/python3.11 test"
    return Level.OK, version, ""


def _versions() -> tuple[Level, str, str]:
    # a package has several lines where versions of Python differ
    locked = set(re.findall(r"(?m)^([\w.-]+==[^\s;]+)", (paths.home() / "requirements.lock").read_text()))
    found = {name: importlib.metadata.version(name) for name in _PACKAGES if importlib.util.find_spec(name)}
    differ = [f"{name} {version} is not the locked one" for name, version in found.items() if f"{name}=={version}" not in locked]
    if differ:
        return Level.WARN, ", ".join(differ), _SET_UP
    return Level.OK, ", ".join(f"{name} {version}" for name, version in found.items()), ""


def _mlx() -> tuple[Level, str, str]:
    import mlx.core as mx

    weights = mx.random.normal((64, 64), key=mx.random.key(0))
    packed = mx.quantize(weights, group_size=64, bits=4)
    ones = mx.ones((1, 64))
    product = mx.quantized_matmul(ones, *packed, group_size=64, bits=4)
    expected = ones @ mx.dequantize(*packed, group_size=64, bits=4).T
    error = float(mx.abs(product - expected).max())
    backend = "Metal" if mx.metal.is_available() else "CUDA" if mx.cuda.is_available() else "CPU"
    if error > 1e-3:
        return Level.FAIL, f"{backend}: a quantised matrix product is off by {error:.2g}", _SET_UP
    return Level.OK, f"{backend}, a quantised matrix product is right", ""


def _metal() -> tuple[Level, str, str]:
    import mlx.core as mx

    if mx.metal.is_available():
        return Level.OK, str(mx.device_info().get("device_name", "available")), ""
    return Level.WARN, "not on this machine; the CPU computes", "use a Mac with Apple silicon"


def _mtlio() -> tuple[Level, str, str]:
    if sys.platform != "darwin":
        return Level.WARN, "not on this machine; pread reads", "use a Mac with Apple silicon"
    if importlib.util.find_spec("Metal") is None:
        return (
            Level.WARN,
            "pyobjc is missing",
            _SET_UP,
        )
    import Metal

    if not hasattr(Metal, "MTLIOCommandQueueDescriptor"):
        return Level.WARN, "this macOS has no Metal I/O queues", "update to macOS 13 or newer"
    return Level.OK, "Metal I/O queues can be made", ""


def _uncached_reads() -> tuple[Level, str, str]:
    folder = _existing(paths.store_folder("mini").parent)
    way = "F_NOCACHE" if sys.platform == "darwin" else "O_DIRECT"
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".doctor-") as file:
        content = os.urandom(2 * PAGE_BYTES)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        table, buffer = FileTable(uncached=True), aligned_buffer(2 * PAGE_BYTES)
        try:
            got = os.preadv(table.descriptor(table.open(Path(file.name))), [buffer.data], 0)
        except (UnmetPrerequisite, OSError) as error:
            return Level.WARN, f"{folder} refuses {way} ({error})", "put data and results on a disk: WORKBENCH_HOME=/path"
        finally:
            table.close()
    if buffer[:got].tobytes() != content:
        return Level.FAIL, f"{way} on {folder} returned other bytes than were written", "put data on another disk"
    return Level.OK, f"{way} works on {folder}", ""


def _huge_pages() -> tuple[Level, str, str]:
    if sys.platform != "linux":
        return Level.OK, "checked on Linux only", ""
    memory = aligned_buffer(4 * MIB)
    memory[:] = 1
    if huge_page_bytes(memory.ctypes.data, len(memory)):
        return Level.OK, "record slots are on pages of 2 MiB", ""
    mend = f"echo madvise | sudo tee {_HUGE_PAGES}"
    return Level.WARN, "not available; large uncached reads may run at half their rate", mend


def _disk() -> tuple[Level, str, str]:
    folder = paths.store_folder("mini").parent
    free = free_disk_bytes(folder)
    found = f"{format_bytes(free)} free on the filesystem of {_existing(folder)}"
    if free < _LEAST_DISK_BYTES:
        return Level.FAIL, found, f"free {format_bytes(_LEAST_DISK_BYTES)}"
    if free < _AMPLE_DISK_BYTES:
        return Level.WARN, found + ": enough for profile mini only", f"free {format_bytes(_AMPLE_DISK_BYTES)} for slice"
    return Level.OK, found, ""


def _memory() -> tuple[Level, str, str]:
    memory = psutil.virtual_memory()
    found = f"{format_bytes(memory.available)} of {format_bytes(memory.total)} available"
    if memory.available < _LEAST_MEMORY_BYTES:
        return Level.WARN, found, f"close programs until {format_bytes(_LEAST_MEMORY_BYTES)} are available"
    return Level.OK, found, ""


def _program(*names: str, use: str) -> Callable[[], tuple[Level, str, str]]:
    def check() -> tuple[Level, str, str]:
        found = next((path for name in names if (path := shutil.which(name))), None)
        if found:
            return Level.OK, found, ""
        install = "brew install" if sys.platform == "darwin" else "apt-get install"
        return Level.WARN, f"missing; {use}", f"{install} {names[0]}"

    return check


def _tokenizer() -> tuple[Level, str, str]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(paths.bundled_model() / "tokenizer.json"))
    text = "def main():\n    return 0\n"
    if tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids) != text:
        return Level.FAIL, "the bundled tokenizer does not give back a text", "git checkout data/qwen4exp-mini-4bit"
    return Level.OK, f"the bundled tokenizer, {tokenizer.get_vocab_size():,} tokens", ""


def _prompts() -> tuple[Level, str, str]:
    try:
        return Level.OK, f"{len(load_prompts(paths.data_folder() / 'prompts'))}, checksums right", ""
    except BadInput as error:
        return Level.FAIL, str(error), "git checkout data/prompts"


def _mini_store() -> tuple[Level, str, str]:
    folder = paths.store_folder("mini")
    pack = f"workbench pack {paths.bundled_model()} --out {folder}"
    try:
        open_store(folder)
    except UnmetPrerequisite:
        return Level.WARN, "not packed yet", pack
    except BadInput as error:
        return Level.FAIL, str(error), f"rm -r {folder}, then {pack}"
    return Level.OK, f"{folder}: sizes right; `workbench verify {folder}` reads every byte", ""


def _mlflow() -> tuple[Level, str, str]:
    store = Store(paths.runs_folder())
    if not store.is_local:
        return Level.OK, f"results go to {store.uri}", ""
    if not store.is_made:
        return Level.OK, "no store yet; the first result makes it", ""
    try:
        with filing(store.root), store.errors():
            # read before MLflow opens it: MLflow adds missing tables, and tries for minutes what can't be opened
            runs = list(store.filed_runs())
            num_experiments = len(store.client.search_experiments())
    except BadInput as error:
        return Level.FAIL, str(error), "workbench track rebuild"
    except UnmetPrerequisite as error:
        return Level.WARN, str(error), "workbench doctor"
    if unfinished := [run.place for run in runs if run.digest is None]:
        return Level.WARN, f"{len(unfinished)} runs are half filed, the first {unfinished[0]}", "workbench track"
    return Level.OK, f"{store.folder}, {num_experiments} experiments, {len(runs)} runs", ""


def _runs() -> tuple[Level, str, str]:
    if damaged := damaged_runs(paths.runs_folder()):
        folder, reason = damaged[0]
        return Level.WARN, f"{len(damaged)} damaged folders are skipped, the first {folder} ({reason})", f"rm -r {folder}"
    by_status: dict[Status, list[Path]] = {status: [] for status in Status}
    for run in list_runs(paths.runs_folder()):
        by_status[run.status].append(run.path)
    if running := by_status[Status.RUNNING]:
        return (
            Level.WARN,
            f"{len(running)} running now, the last {running[-1]}: other measurements are disturbed meanwhile",
            "wait",
        )
    if left := by_status[Status.ABANDONED]:
        return Level.WARN, f"{len(left)} never finished, the last {left[-1]}", f"rm -r {left[-1]}"
    return Level.OK, f"{sum(map(len, by_status.values()))} results, none left running", ""


def _existing(folder: Path) -> Path:
    return folder if folder.exists() else _existing(folder.parent)


_CHECKS: dict[str, Callable[[], tuple[Level, str, str]]] = {
    "python": _python,
    "versions": _versions,
    "mlx": _mlx,
    "metal": _metal,
    "mtlio": _mtlio,
    "uncached reads": _uncached_reads,
    "huge pages": _huge_pages,
    "disk": _disk,
    "memory": _memory,
    "tokenizer": _tokenizer,
    "prompts": _prompts,
    "mini store": _mini_store,
    "mlflow": _mlflow,
    "runs": _runs,
    "fio": _program("fio", use="only `workbench bench io --against fio` needs it"),
    "chromium": _program("chromium", "google-chrome", "chrome", use="only needed to look at pages without a desktop"),
}
