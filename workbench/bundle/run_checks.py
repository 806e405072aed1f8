"""Checks of one run: its configuration's digest, and metrics, series and findings computed again from its raw events."""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import polars as pl

from workbench.abba.records import AbbaConfig
from workbench.analysis.detectors import run_detectors
from workbench.analysis.run_metrics import run_metrics, token_series
from workbench.analysis.token_bound import token_bound
from workbench.bundle.checks import Check, failed, not_checked, ok
from workbench.bundle.make import EVENTS
from workbench.bundle.version_1 import as_version_1_counted, digest_as_written
from workbench.config import Config
from workbench.errors import BadInput
from workbench.experiments.generate import GenerateConfig
from workbench.experiments.modes import ModesConfig
from workbench.experiments.trace import TraceConfig
from workbench.gates import GATES, find_gate
from workbench.gates.traces import profile_geometry
from workbench.schema import Result, RunFolder, read_events
from workbench.schema.events import events_version

TOLERANCE = 1e-9
"""Relative tolerance, since sums may be made in another order."""
_EVENT_KINDS = ("generate", "trace")
_MAX_NAMED = 3


def config_class(kind: str) -> type[Config] | None:
    """The configuration class of runs of a kind, or None for an unknown kind."""
    known: dict[str, type[Config]] = {
        "generate": GenerateConfig, "trace": TraceConfig, "modes": ModesConfig, "abba": AbbaConfig,
    }  # fmt: skip
    gate = next((name for name in GATES if kind == f"gate_{name[0]}"), None)
    return find_gate(gate).config if gate else known.get(kind)


def check_run(what: str, folder: RunFolder, result: Result) -> Iterator[Check]:
    """All checks of one run folder; `what` is its name in the report."""
    yield check_config(what, folder, result)
    if result.kind not in _EVENT_KINDS:
        return
    path = folder.path / EVENTS
    events = read_events(path)
    counted = as_version_1_counted(events) if events_version(path) == "1" else events
    yield from _check_metrics(what, events, counted, result)
    yield _check_series(what, counted, result)
    if "findings" in result.tables:
        yield _check_findings(what, counted, result)
    yield from _check_digests(what, folder.path, result)


def check_config(what: str, folder: RunFolder, result: Result) -> Check:
    """Checks that the configuration gives the digest that was stored before the first read."""
    stored = {folder.environment["config_digest"], result.config_digest}
    kind = config_class(result.kind)
    if len(stored) > 1:
        return failed(f"{what}: config digest", "environment.json and result.json name different ones")
    if kind is None:
        return not_checked(f"{what}: config digest", f"runs of kind {result.kind} are not known to this workbench")
    path = folder.path / "config.toml"
    try:
        if stored == {digest_as_written(kind, path)}:
            return ok(f"{what}: config digest", result.config_digest[:12])
        found = kind.from_toml(path).digest
    except BadInput as error:
        return not_checked(f"{what}: config digest", f"this workbench can't read it: {error}")
    if stored != {found}:
        return failed(f"{what}: config digest", f"config.toml gives {found[:12]}, the result says {result.config_digest[:12]}")
    return ok(f"{what}: config digest", found[:12])


def _check_metrics(what: str, events: pl.DataFrame, counted: pl.DataFrame, result: Result) -> Iterator[Check]:
    """Compares metrics with the events; `counted`: the events as the run's version counted tokens for bounds."""
    found = run_metrics(events)
    bandwidth = result.tags.get("bandwidth_bytes_per_s")
    if bandwidth is not None:
        found |= token_bound(counted, float(bandwidth), profile_geometry(result.profile).num_experts_per_tok)
    wrong = [
        f"{name} is {result.metrics.get(name)!r}, its events give {value!r}"
        for name, value in found.items()
        if not _same(result.metrics.get(name), value)
    ]
    if wrong:
        yield failed(f"{what}: metrics", "; ".join(wrong[:_MAX_NAMED]) + _more(wrong))
    else:
        yield ok(f"{what}: metrics", f"{len(found)} computed again from {events.height:,} events")
    if unseen := sorted(result.metrics.keys() - found.keys()):
        yield not_checked(f"{what}: metrics", f"not in the events: {', '.join(unseen)}")


def _check_series(what: str, events: pl.DataFrame, result: Result) -> Check:
    wrong = [
        name
        for name, values in token_series(events).items()
        if name in result.per_token and not _same_series(result.per_token[name], values)
    ]
    if wrong:
        return failed(f"{what}: values by token", f"{', '.join(wrong)} differ from the events")
    return ok(f"{what}: values by token", f"{len(result.per_token)} series")


def _check_findings(what: str, events: pl.DataFrame, result: Result) -> Check:
    known = float(result.tags.get("bandwidth_bytes_per_s", math.inf))
    found = [finding.row() for finding in run_detectors(events, result.metrics, bandwidth_bytes_per_s=known)]
    said = result.tables["findings"]
    if found != said:
        codes = [[row["code"] for row in rows] for rows in (found, said)]
        return failed(f"{what}: detectors", f"they find {codes[0]}, the result says {codes[1]}")
    return ok(f"{what}: detectors", ", ".join(row["code"] for row in found) or "silent")


def _check_digests(what: str, path: Path, result: Result) -> Iterator[Check]:
    text = path / "artifacts" / "text.md"
    if "output_digest" in result.tags and text.exists():
        found = hashlib.sha256(text.read_bytes()).hexdigest()
        if found == result.tags["output_digest"]:
            yield ok(f"{what}: output digest", found[:12])
        else:
            yield failed(f"{what}: output digest", f"text.md gives {found[:12]}, not {result.tags['output_digest'][:12]}")
    unseen = [name for name in ("state_digest", "routing_digest") if name in result.tags]
    if unseen:
        yield not_checked(f"{what}: {', '.join(unseen)}", "only a run of the same plan on the same store can make them again")


def _same(said: float | None, found: float) -> bool:
    if said is None:
        return False
    return math.isclose(said, found, rel_tol=TOLERANCE, abs_tol=1e-12) or (math.isnan(said) and math.isnan(found))


def _same_series(said: Sequence[float], found: Sequence[float]) -> bool:
    return len(said) == len(found) and all(map(_same, said, found))


def _more(wrong: Sequence[str]) -> str:
    return f" and {len(wrong) - _MAX_NAMED} more" if len(wrong) > _MAX_NAMED else ""


def first_difference(said: Mapping[str, object], found: Mapping[str, object]) -> str:
    """The first key on which two mappings disagree, in words; empty: they agree."""
    for name in sorted({*said, *found}):
        here, there = said.get(name), found.get(name)
        if isinstance(here, float) and isinstance(there, float) and _same(here, there):
            continue
        if isinstance(here, Mapping) and isinstance(there, Mapping):
            if inner := first_difference(here, there):
                return f"{name}.{inner}"
        elif here != there:
            return f"{name} is {here!r}, the records give {there!r}"
    return ""
