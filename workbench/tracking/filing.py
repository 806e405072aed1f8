"""Files each result folder as one MLflow run; filing is incremental, and filing everything anew gives the same store."""

import hashlib
import json
import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.config import ConfigError, read_toml
from workbench.errors import one_line, shortened
from workbench.files import json_text
from workbench.gates import GATES, find_gate
from workbench.progress import progress, say
from workbench.schema import Result, RunFolder, Status, list_runs
from workbench.schema.results import sound_runs
from workbench.tracking import locks
from workbench.tracking.comparisons import arm_params, cohort_series, comparison_params
from workbench.tracking.notes import run_note
from workbench.tracking.store import DIGEST_TAG, FOLDER_TAG, FiledRun, Store

ARM_COLOURS = {"A": "#4c78a8", "B": "#f58518"}
"""As `plots.style` has them; written out here, because importing it would import matplotlib."""
_ARMS = "*/*/arms/*/*/arm/*/*/environment.json"
_PARTS = ("config.toml", "environment.json", "events.parquet", "result.json")
_PARENT_TAG = "mlflow.parentRunId"
_MAX_PARAMS = 15
_MAX_BATCH = 900
_STATUS = {Status.FINISHED: "FINISHED", Status.FAILED: "FAILED", Status.INTERRUPTED: "KILLED", Status.ABANDONED: "KILLED"}


@dataclass(frozen=True, kw_only=True)
class Filed:
    """A result folder and the MLflow run that it was filed as."""

    place: str
    """Path of the folder relative to the root of results: `<kind>/<id>`, longer for an arm."""
    experiment_id: str
    run_id: str

    @property
    def is_arm(self) -> bool:
        """True for an arm, whose folder is within a comparison's folder."""
        return self.place.count("/") > 1

    @property
    def cohort(self) -> tuple[str, str]:
        """The place of the arm's comparison and the name of the arm's cohort; defined for arms only."""
        kind, series, _, cohort, *_ = self.place.split("/")
        return f"{kind}/{series}", cohort


def track(root: Path, store: Store | None = None) -> list[Filed]:
    """Files every folder that is new, has changed, or whose filing did not end; runs in progress are skipped.

    One process files at a time. Raises BadInput on a store that can't be used, UnmetPrerequisite when another process files for
    minutes or no server answers.
    """
    if not root.is_dir():
        return []
    store = store or Store(root)
    with locks.filing(root), store.errors():
        return _track(root, store)


def rebuild(root: Path) -> list[Filed]:
    """Empties MLflow's store and files every folder anew. Raises as `track` does, and while MLflow's pages show the store."""
    if not root.is_dir():
        return []
    store = Store(root)
    with locks.not_shown(root), locks.filing(root), store.errors():
        store.clear()
        return _track(root, store)


def _track(root: Path, store: Store) -> list[Filed]:
    folders = [(place, folder) for place, folder in _folders(root) if folder.status is not Status.RUNNING]
    known = _mend(store, {place for place, _ in folders})
    ids = {place: run.run_id for place, run in known.items()}
    waiting = [
        (place, folder) for place, folder in folders if place not in known or known[place].digest != _result_digest(folder)
    ]
    filed = []
    with progress("filing runs in MLflow", len(waiting)) as advance:
        for place, folder in waiting:
            old = ids.get(place)
            if (new := _file_if_possible(store, place, folder, ids)) is not None:
                filed.append(new)
                ids[place] = new.run_id
                if old is not None:
                    _replace(store, old, place, ids)
            advance(1)
    return filed


def _file_if_possible(store: Store, place: str, folder: RunFolder, ids: Mapping[str, str]) -> Filed | None:
    """Files a folder. None, with one line that says why, for damaged settings or content that MLflow refuses.

    Folders after it are filed all the same. A refused folder's run is deleted, since its filing did not end.
    """
    try:
        return _file(store, place, folder, ids)
    except ConfigError as error:
        say(f"{place} is not filed: {error}")
    except Exception as error:
        if getattr(error, "error_code", None) != "INVALID_PARAMETER_VALUE":
            raise
        for run in [each for each in store.filed_runs() if each.place == place and each.digest is None]:
            store.client.delete_run(run.run_id)
        say(f"{place} is not filed: MLflow refuses it: {shortened(one_line(str(error)), 200)}")
    return None


def _mend(store: Store, places: set[str]) -> dict[str, FiledRun]:
    """Whole filed runs by place, one for each; deletes duplicates, and runs whose filing did not end.

    Both are left by a process that was killed, or by processes that filed at the same time before there was a lock. A server's
    runs of other folders are left alone: another machine may be filing them.
    """
    runs = [run for run in store.filed_runs() if store.is_local or run.place in places]
    known = {run.place: run for run in runs if run.digest is not None}
    extra = [run for run in runs if run != known.get(run.place)]
    ids = {place: run.run_id for place, run in known.items()}
    for run in extra:
        _replace(store, run.run_id, run.place, ids)
    if extra:
        num_unfinished = sum(run.digest is None for run in extra)
        say(f"mending MLflow's store: deleted {num_unfinished} half-filed and {len(extra) - num_unfinished} duplicate runs")
    return known


def _replace(store: Store, old: str, place: str, ids: Mapping[str, str]) -> None:
    """Deletes a run of `place`; the arms of a comparison become children of the run that replaces it."""
    store.client.delete_run(old)
    for arm in [each for each in ids if each.startswith(f"{place}/") and place in ids]:
        store.client.set_tag(ids[arm], _PARENT_TAG, ids[place])


def _folders(root: Path) -> Iterator[tuple[str, RunFolder]]:
    """Every result folder with its place under `root`: runs first, then the arms within a comparison's folder."""
    arms = sound_runs(sorted(root.glob(_ARMS)))
    return ((folder.path.relative_to(root).as_posix(), folder) for folder in (*list_runs(root), *arms))


def _file(store: Store, place: str, folder: RunFolder, ids: Mapping[str, str]) -> Filed:
    about, result = folder.environment, folder.result
    parent = about["tags"].get("parent", "")
    # MLflow folds children under their parent only within one experiment
    experiment_id = store.experiment(*_experiment(parent.partition("/")[0] if parent in ids else about["kind"]))
    started_ms = int(about["started_unix_s"] * 1000)
    tags = _tags(place, folder, about, result)
    if parent in ids:
        tags[_PARENT_TAG] = ids[parent]
    # before the run is made: a damaged file of settings leaves none
    params = _params(_settings(folder, about), about["config_digest"])
    run = store.client.create_run(experiment_id, start_time=started_ms, tags=tags, run_name=_name(about, result))
    run_id = run.info.run_id
    for metrics in _batches(_metrics(result, started_ms) if result else []):
        store.client.log_batch(run_id, metrics=metrics)
    store.client.log_batch(run_id, params=params)
    _log_tables(store, run_id, result.tables if result else {})
    for part in _PARTS:
        if (folder.path / part).is_file():
            store.client.log_artifact(run_id, str(folder.path / part))
    store.client.log_artifacts(run_id, str(folder.artifacts), "artifacts")
    ended_ms = started_ms + int(1000 * result.duration_s) if result else started_ms
    store.client.set_terminated(run_id, status=_STATUS[folder.status], end_time=ended_ms)
    return Filed(place=place, experiment_id=experiment_id, run_id=run_id)


def _log_tables(store: Store, run_id: str, tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Logs tables as `MlflowClient.log_table` does, but in one call: one call per table took most of a run's filing time."""
    filled = {name: rows for name, rows in tables.items() if rows}
    if not filled:
        return
    with tempfile.TemporaryDirectory() as folder:
        for name, rows in filled.items():
            data = [[_rounded(cell) if isinstance(cell, float) else cell for cell in row.values()] for row in rows]
            (Path(folder) / f"{name}.json").write_text(json_text({"columns": list(rows[0]), "data": data}))
        store.client.log_artifacts(run_id, folder, "tables")
    listed = [{"path": f"tables/{name}.json", "type": "table"} for name in filled]
    store.client.set_tag(run_id, "mlflow.loggedArtifacts", json.dumps(listed))


def _experiment(kind: str) -> tuple[str, str]:
    """Name and description of the experiment for runs of a kind: one per gate, else one per kind."""
    name = next((name for name in GATES if kind == f"gate_{name[0]}"), None)
    if name is None:
        return kind.replace("_", "-"), f"Runs of `workbench {kind}`."
    gate = find_gate(name)
    return f"gate-{gate.letter} {name[2:].replace('_', '-')}", f"{gate.question}\n\n`workbench gate {name}`"


def _name(about: Mapping[str, Any], result: Result | None) -> str:
    """`<cohort>-<position><arm>` for an arm of a cohort, so that any sort gives A B B A; else its verdict and start."""
    tags = {**about["tags"], **(result.tags if result else {})}
    if {"cohort", "position", "arm"} <= tags.keys():
        return f"{tags['cohort']}-{tags['position']}{tags['arm']}"
    word = result.verdict.outcome.value if result and result.verdict else tags.get("arm", "")
    words = [word, about["profile"], "smoke" if tags.get("smoke") == "true" else ""]
    started = time.strftime("%m-%d %H:%M:%S", time.gmtime(about["started_unix_s"]))
    return " ".join([*filter(None, words), started])


def _tags(place: str, folder: RunFolder, about: Mapping[str, Any], result: Result | None) -> dict[str, str]:
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
        FOLDER_TAG: place,
        DIGEST_TAG: _result_digest(folder),
        "mlflow.note.content": run_note(dict(about), result, place),
        "mlflow.source.name": "workbench",
    }
    if result and result.verdict:
        tags |= {"verdict": result.verdict.outcome.value, "codes": " ".join(result.verdict.codes)}
    if colour := ARM_COLOURS.get(own.get("arm", "")):
        tags["mlflow.runColor"] = colour
    infinite = {f"infinite.{name}": str(value) for name, value in (result.metrics if result else {}).items() if math.isinf(value)}
    return tags | infinite


def _settings(folder: RunFolder, about: Mapping[str, Any]) -> dict[str, Any]:
    """Settings shown as parameters: of an arm, those that its comparison changes; of a run, all scalars by short name."""
    if "parent" in about["tags"]:
        return arm_params(folder)
    if about["kind"] == "abba":
        return comparison_params(folder)
    return dict(_leaves(read_toml(folder.path / "config.toml")))


def _params(settings: Mapping[str, Any], digest: str) -> list[Any]:
    """MLflow parameters, at most as many as a table of runs can show."""
    from mlflow.entities import Param

    settings = {name: value for name, value in settings.items() if value != ""}
    settings = dict(list(settings.items())[: _MAX_PARAMS - 1]) | {"config_sha": digest[:12]}
    return [Param(name, str(value)) for name, value in settings.items()]


def _leaves(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value)
        elif not isinstance(value, list):
            yield name, value


def _metrics(result: Result, time_ms: int) -> Iterator[Any]:
    """MLflow metrics: scalars of the result and its verdict, then series with one step per token under keys of their own."""
    from mlflow.entities import Metric

    scalars = dict(result.metrics)
    for criterion in result.verdict.criteria if result.verdict else ():
        # MLflow refuses @ in the name of a metric
        code = criterion.code.replace("@", " on ")
        scalars[f"criteria/{code}"] = criterion.value
        scalars[f"criteria/{code}_low"] = criterion.low
        scalars[f"criteria/{code}_high"] = criterion.high
    yield from (Metric(name, _rounded(value), time_ms, 0) for name, value in scalars.items() if not math.isinf(value))
    for name, values in result.per_token.items():
        key = f"per_token/{name.replace('/', '.')}"
        yield from (Metric(key, _rounded(value), time_ms, step) for step, value in enumerate(values) if not math.isinf(value))
    yield from (Metric(key, _rounded(value), time_ms, cohort) for key, cohort, value in cohort_series(result))


def _rounded(value: float) -> float:
    """Five significant digits: MLflow shows a float in full, 0.09 as 0.08999999999999997."""
    return float(f"{value:.5g}")


def _batches(metrics: Any) -> Iterator[list[Any]]:
    everything = list(metrics)
    for start in range(0, len(everything), _MAX_BATCH):
        yield everything[start : start + _MAX_BATCH]


def _result_digest(folder: RunFolder) -> str:
    path = folder.path / "result.json"
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.exists() else "none"
