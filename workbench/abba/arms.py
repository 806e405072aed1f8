"""Runs one arm of a comparison as a separate, watched process, and makes an `ArmRecord` of its result folder."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.abba.cache_state import cached, prepare
from workbench.abba.records import AbbaConfig, ArmName, ArmRecord
from workbench.abba.watch import Watch
from workbench.errors import BadInput
from workbench.schema import Result, RunFolder, Status
from workbench.schema.results import ARM_VARIABLE, write_json

_LEASH = Path(__file__).with_name("leash.py")
_PACKAGE = Path(__file__).parent.parent
_GRACE_S = 5.0
_BYTES = ("e2e/demand_bytes_per_token", "e2e/wasted_bytes_per_token")


@dataclass(frozen=True, kw_only=True)
class ArmEnd:
    """How an arm's command ended."""

    exit_code: int
    timed_out: bool
    started_ns: int
    duration_s: float


def run_arm(config: AbbaConfig, name: ArmName, *, plan: Path, home: Path, series: Path, watch: Callable[[], Watch]) -> ArmRecord:
    """Runs the warm-ups, whose results are discarded, then the watched arm; returns the arm's record.

    Args:
        config: the comparison.
        name: `1A`, `2B`, `3B` or `4A`.
        plan: TOML file with the configuration of arm A or B.
        home: folder for the arm's result folder and logs; must not exist.
        series: the comparison's folder, which paths in the record are relative to.
        watch: makes a watchdog.
    """
    files = [Path(path) for path in config.cache_files]
    for number in range(config.warmups):
        warm_up = home / f"warm-up-{number + 1}"
        _launch(config, plan, warm_up, lambda _: None)
        shutil.rmtree(warm_up)
    prepare(files, config.cache_state)
    fraction = cached(files)
    identity = {"sources": sources_digest()}
    watchdog = watch()
    watchdog.start()
    try:
        outcome = _launch(config, plan, home / "arm", watchdog.follow, _tags(series, home))
    finally:
        record = watchdog.stop()
    write_json(home / "watch.json", watchdog.readings)
    return ArmRecord(
        name=name,
        exit_code=outcome.exit_code,
        timed_out=outcome.timed_out,
        started_ns=outcome.started_ns,
        duration_s=outcome.duration_s,
        cached_fraction=fraction,
        watch=record,
        **_left_behind(config, home / "arm", plan, series, identity),
    )


def _tags(series: Path, home: Path) -> dict[str, str]:
    """Tags that place an arm in its comparison; `home` is `<series>/arms/<cohort>/<position><arm>`."""
    parent = f"{series.parent.name}/{series.name}"
    return {"parent": parent, "cohort": home.parent.name, "position": home.name[:-1], "arm": home.name[-1]}


def sources_digest() -> str:
    """SHA-256 over the package's sources: an edit between two arms changes it."""
    digest = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        digest.update(path.relative_to(_PACKAGE).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def sources_changed(arm: ArmRecord) -> bool:
    """True when the package was edited since `arm` ran: an arm that runs now could not be paired with it."""
    then = arm.identity.get("sources")
    return then is not None and then != sources_digest()


def _launch(
    config: AbbaConfig, plan: Path, home: Path, started: Callable[[int], None], tags: Mapping[str, str] | None = None
) -> ArmEnd:
    """Runs the command with its results under `home`; ends its session on the time limit or when this process is interrupted."""
    home.mkdir(parents=True)
    words = [word.format(python=sys.executable, plan=plan) for word in config.command]
    started_ns = time.monotonic_ns()
    with (home / "stdout").open("wb") as out, (home / "stderr").open("wb") as err:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_LEASH), *words],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=err,
            start_new_session=True,
            env=os.environ | {"WORKBENCH_RUNS": str(home), ARM_VARIABLE: json.dumps(tags or {})},
        )
        timed_out = False
        try:
            started(process.pid)
            process.wait(config.arm_timeout_s)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            _end(process)
    code = process.returncode
    return ArmEnd(
        exit_code=128 - code if code > 128 else code,
        timed_out=timed_out,
        started_ns=started_ns,
        duration_s=(time.monotonic_ns() - started_ns) / 1e9,
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the remaining processes of an arm's session: SIGTERM, then SIGKILL after a grace period."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stdin is not None
    process.stdin.close()


def _left_behind(config: AbbaConfig, home: Path, plan: Path, series: Path, identity: Mapping[str, str]) -> dict[str, Any]:
    """Fields of the record that come from the arm's result folder and logs."""
    folders = sorted(path.parent for path in home.glob("*/*/environment.json"))
    if len(folders) != 1:
        why = _last_line(home / "stderr") or f"the arm wrote {len(folders)} result folders, not one"
        return {"error": why, "identity": dict(identity)}
    folder = RunFolder(folders[0])
    record: dict[str, Any] = {"folder": os.path.relpath(folder.path, series), "plan_mismatch": plan_mismatch(plan, folder)}
    try:
        result = folder.result
    except BadInput as error:
        return record | {"error": str(error), "identity": dict(identity)}
    if result is None or result.status is not Status.FINISHED:
        why = (result.error or result.status.value) if result else "the arm wrote no result"
        return record | {"error": why, "identity": dict(identity)}
    return record | fields_of(config, folder, result, identity)


def fields_of(config: AbbaConfig, folder: RunFolder, result: Result, identity: Mapping[str, str]) -> dict[str, Any]:
    """Fields of an `ArmRecord` that come from a finished arm's result."""
    about = folder.environment
    tags = result.tags
    stable = {name: tags[name] for name in tags if name.endswith(("_digest", "_sha256")) and name not in config.digests}
    working_set = result.metrics.get("e2e/working_set_bytes")
    present = [result.metrics[name] for name in _BYTES if name in result.metrics]
    return {
        "value": result.metrics.get(config.metric),
        "bytes_per_token": sum(present) if present else None,
        "config_digest": result.config_digest,
        "working_set_bytes": int(working_set) if working_set is not None else None,
        "evidence": result.evidence.value,
        "digests": {name: tags[name] for name in config.digests if name in tags},
        "identity": {
            **identity,
            **stable,
            "python": about["python"],
            "versions": json.dumps(about["versions"], sort_keys=True),
            "machine": about["machine"]["digest"],
        },
    }


def plan_mismatch(plan: Path, folder: RunFolder) -> str:
    """The first planned setting that differs in the arm's own configuration, in words; empty: none."""
    planned = tomllib.loads(plan.read_text())
    try:
        actual = tomllib.loads((folder.path / "config.toml").read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        return f"its config.toml can't be read: {error}"
    return _first_difference(planned, actual, "")


def _first_difference(planned: Mapping[str, Any], actual: Mapping[str, Any], prefix: str) -> str:
    for key, value in planned.items():
        found = actual.get(key)
        if isinstance(value, dict) and isinstance(found, dict):
            if difference := _first_difference(value, found, f"{prefix}{key}."):
                return difference
        elif found != value:
            return f"{prefix}{key} was planned as {value!r} and ran as {found!r}"
    return ""


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    return lines[-1][:500] if lines else ""
