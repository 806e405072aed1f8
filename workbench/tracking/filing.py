"""One result folder becomes one MLflow run; filing is incremental, and filing everything anew gives the same store."""

import hashlib
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.gates import GATES, find_gate
from workbench.progress import progress
from workbench.schema import Result, RunFolder, Status, list_runs
from workbench.tracking.notes import run_note
from workbench.tracking.store import FOLDER_TAG, Store

ARM_COLOURS = {"A": "#4c78a8", "B": "#f58518"}
_MAX_PARAMS = 15
_MAX_BATCH = 900
_DIGEST_TAG = "result_digest"
_STATUS = {Status.FINISHED: "FINISHED", Status.FAILED: "FAILED", Status.INTERRUPTED: "KILLED", Status.ABANDONED: "KILLED"}


@dataclass(frozen=True, kw_only=True)
class Filed:
    """A result folder and the run it became."""

    folder: RunFolder
    experiment_id: str
    run_id: str


def track(root: Path, store: Store | None = None) -> list[Filed]:
    """Files every folder that is new or has changed since it was filed; runs still going are left for later."""
    store = store or Store(root)
    known = {run.data.tags[FOLDER_TAG]: run for run in store.filed_runs()}
    ids = {place: run.info.run_id for place, run in known.items()}
    waiting = [
        folder
        for folder in _parents_first(list_runs(root))
        if folder.status is not Status.RUNNING and _filed_digest(known.get(_place(folder))) != _result_digest(folder)
    ]
    filed = []
    with progress("filing runs in MLflow", len(waiting)) as advance:
        for folder in waiting:
            if (old := ids.get(_place(folder))) is not None:
                store.client.delete_run(old)
            filed.append(_file(store, folder, ids))
            ids[_place(folder)] = filed[-1].run_id
            advance(1)
    return filed


def rebuild(root: Path) -> list[Filed]:
    """Forgets what was filed and files every folder anew."""
    store = Store(root)
    store.clear()
    return track(root, store)


def _file(store: Store, folder: RunFolder, ids: Mapping[str, str]) -> Filed:
    about, result = folder.environment, folder.result
    experiment_id = store.experiment(*_experiment(about["kind"]))
    started_ms = int(about["started_unix_s"] * 1000)
    tags = _tags(folder, about, result)
    if parent := ids.get(tags.get("parent", "")):
        tags["mlflow.parentRunId"] = parent
    run = store.client.create_run(experiment_id, start_time=started_ms, tags=tags, run_name=_name(about, result))
    run_id = run.info.run_id
    for metrics in _batches(_metrics(result, started_ms) if result else []):
        store.client.log_batch(run_id, metrics=metrics)
    store.client.log_batch(run_id, params=_params(folder.path / "config.toml", about["config_digest"]))
    for name, rows in (result.tables if result else {}).items():
        if rows:
            store.client.log_table(run_id, {column: [row[column] for row in rows] for column in rows[0]}, f"tables/{name}.json")
    store.client.log_artifacts(run_id, str(folder.path))
    ended_ms = started_ms + int(1000 * result.duration_s) if result else started_ms
    store.client.set_terminated(run_id, status=_STATUS[folder.status], end_time=ended_ms)
    return Filed(folder=folder, experiment_id=experiment_id, run_id=run_id)


def _experiment(kind: str) -> tuple[str, str]:
    """Name and description of the experiment that holds runs of a kind: one a gate, else one a kind."""
    name = next((name for name in GATES if kind == f"gate_{name[0]}"), None)
    if name is None:
        return kind.replace("_", "-"), f"Runs of `workbench {kind}`."
    gate = find_gate(name)
    return f"gate-{gate.letter} {name[2:].replace('_', '-')}", f"{gate.question}\n\n`workbench gate {name}`"


def _name(about: Mapping[str, Any], result: Result | None) -> str:
    """`<cohort>-<position><arm>` for an arm of a cohort, so that any sort gives A B B A; else its profile and start."""
    tags = {**about["tags"], **(result.tags if result else {})}
    if {"cohort", "position", "arm"} <= tags.keys():
        return f"{tags['cohort']}-{tags['position']}{tags['arm']}"
    return f"{about['profile']}{' smoke' if tags.get('smoke') == 'true' else ''} {about['run_id']}"


def _tags(folder: RunFolder, about: Mapping[str, Any], result: Result | None) -> dict[str, str]:
    own = {**about["tags"], **(result.tags if result else {})}
    tags = {
        **own,
        "kind": about["kind"],
        "profile": about["profile"],
        "evidence": about["evidence"],
        "machine": about["machine"]["digest"],
        "commit": about["commit"][:12] + ("+" if about["dirty"] else ""),
        "config": about["config_digest"][:12],
        "status": folder.status.value,
        FOLDER_TAG: _place(folder),
        _DIGEST_TAG: _result_digest(folder),
        "mlflow.note.content": run_note(dict(about), result, _place(folder)),
        "mlflow.source.name": "workbench",
    }
    if result and result.verdict:
        tags |= {"verdict": result.verdict.outcome.value, "codes": " ".join(result.verdict.codes)}
    if colour := ARM_COLOURS.get(own.get("arm", "")):
        tags["mlflow.runColor"] = colour
    infinite = {f"infinite.{name}": str(value) for name, value in (result.metrics if result else {}).items() if math.isinf(value)}
    return tags | infinite


def _params(config: Path, digest: str) -> list[Any]:
    """The plain settings, by their short names, and no more than a table of runs can show."""
    from mlflow.entities import Param

    settings = {name: value for name, value in _leaves(tomllib.loads(config.read_text())) if value != ""}
    settings = dict(list(settings.items())[: _MAX_PARAMS - 1]) | {"config_sha": digest[:12]}
    return [Param(name, str(value)) for name, value in settings.items()]


def _leaves(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value)
        elif not isinstance(value, list):
            yield name, value


def _metrics(result: Result, time_ms: int) -> Iterator[Any]:
    """Scalars of the result and its verdict, then series with a step a token under keys of their own."""
    from mlflow.entities import Metric

    scalars = dict(result.metrics)
    for criterion in result.verdict.criteria if result.verdict else ():
        scalars[f"criteria/{criterion.code}"] = criterion.value
        scalars[f"criteria/{criterion.code}_low"] = criterion.low
        scalars[f"criteria/{criterion.code}_high"] = criterion.high
    yield from (Metric(name, _rounded(value), time_ms, 0) for name, value in scalars.items() if not math.isinf(value))
    for name, values in result.per_token.items():
        key = f"per_token/{name.replace('/', '.')}"
        yield from (Metric(key, _rounded(value), time_ms, step) for step, value in enumerate(values) if not math.isinf(value))


def _rounded(value: float) -> float:
    """Five significant digits: MLflow shows a float in full, 0.09 as 0.08999999999999997."""
    return float(f"{value:.5g}")


def _batches(metrics: Any) -> Iterator[list[Any]]:
    everything = list(metrics)
    for start in range(0, len(everything), _MAX_BATCH):
        yield everything[start : start + _MAX_BATCH]


def _parents_first(folders: Iterator[RunFolder]) -> Sequence[RunFolder]:
    return sorted(folders, key=lambda folder: "parent" in folder.environment["tags"])


def _place(folder: RunFolder) -> str:
    return f"{folder.path.parent.name}/{folder.path.name}"


def _result_digest(folder: RunFolder) -> str:
    path = folder.path / "result.json"
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.exists() else "none"


def _filed_digest(run: Any) -> str | None:
    return run.data.tags.get(_DIGEST_TAG) if run is not None else None
