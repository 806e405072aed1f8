"""Checks of a gate's run: its clauses measured again, if the bundle has the data, and its outcome derived again from them."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from workbench.bundle.checks import Check, failed, not_checked, ok
from workbench.bundle.manifest import BundleManifest
from workbench.bundle.run_checks import first_difference
from workbench.schema import Criterion, Result, RunFolder, Verdict, decide, read_routes
from workbench.schema.parquet import read_parquet

_MAX_RESAMPLES = 100_000


def check_gate(folder: RunFolder, result: Result, manifest: BundleManifest, inputs: Path) -> Iterator[Check]:
    """All checks of a gate's run."""
    if result.verdict is None:
        yield failed("verdict", "the result has no verdict")
        return
    yield _check_outcome(result.verdict)
    traces = sorted(inputs.glob("*.parquet"))
    if result.kind == "gate_b" and traces:
        yield from _check_locality(folder, result, traces[0])
    elif result.kind == "gate_c":
        yield from _check_overlap(folder, result.verdict)
        yield not_checked("arms", "their raw events are in the comparisons: each has a bundle of its own")
    else:
        missing = f": {', '.join(manifest.left_out)} is not in the bundle" if manifest.left_out else ""
        yield not_checked("clauses", f"the bundle lacks the data to measure them again{missing}")


def _check_outcome(verdict: Verdict) -> Check:
    """Compares the outcome with the clauses'; they may differ only where a limit turned a pass into inconclusive."""
    drawn = decide(verdict.criteria)
    limited = drawn.outcome == "pass" and verdict.outcome == "inconclusive"
    if not limited and (drawn.outcome, drawn.codes) != (verdict.outcome, verdict.codes):
        said = f"{verdict.outcome.value} ({', '.join(verdict.codes)})"
        return failed("verdict", f"it says {said}, its clauses give {drawn.outcome.value} ({', '.join(drawn.codes)})")
    return ok("verdict", f"{verdict.outcome.value} ({', '.join(verdict.codes)}), from the clauses as stated")


def _check_locality(folder: RunFolder, result: Result, trace: Path) -> Iterator[Check]:
    from workbench.analysis.routes import routes_of
    from workbench.gates.b_locality import LocalityConfig
    from workbench.gates.b_locality.measures import measure
    from workbench.gates.b_locality.verdict import criteria_of
    from workbench.gates.traces import profile_geometry

    config = LocalityConfig.from_toml(folder.path / "config.toml")
    if config.resamples > _MAX_RESAMPLES:
        yield not_checked("clauses", f"{config.resamples:,} resamples would take too long")
        return
    frame, shape = read_routes(trace)
    routes = routes_of(frame, num_experts=shape["num_experts"])
    measures = measure(routes, config, profile_geometry(config.profile).record_bytes)
    criteria, stored_criteria = criteria_of(measures, config), result.verdict.criteria if result.verdict else ()
    found, said = _by_code(criteria), _by_code(stored_criteria)
    for what, stored, again in (("clauses", said, found), ("metrics", result.metrics, measures.metrics)):
        if difference := first_difference(stored, again):
            yield failed(what, difference)
        else:
            yield ok(what, f"{len(again)} measured again from {trace.name}")
    yield _check_statements(stored_criteria, criteria)
    yield not_checked("route trace", "only a run of the same prompts on the same store can record it again")


def _check_overlap(folder: RunFolder, verdict: Verdict) -> Iterator[Check]:
    from workbench.gates.c_overlap.config import OverlapConfig
    from workbench.gates.c_overlap.verdict import TABLES, Measures, criteria_of

    config = OverlapConfig.from_toml(folder.path / "config.toml")
    tables = {name: read_parquet(folder.artifacts / "tables" / f"{name}.parquet") for name in TABLES}
    if other := [name for name, schema in TABLES.items() if dict(tables[name].schema) != schema]:
        yield failed("clauses", f"{other[0]}.parquet has other columns than this workbench's")
        return
    criteria = criteria_of(Measures(**tables), config)
    if difference := first_difference(_by_code(verdict.criteria), _by_code(criteria)):
        yield failed("clauses", difference)
    else:
        yield ok("clauses", f"{len(criteria)} drawn again from the tables {', '.join(TABLES)}")
    yield _check_statements(verdict.criteria, criteria)


def _by_code(criteria: Sequence[Criterion]) -> dict[str, dict[str, Any]]:
    """Figures, relations and thresholds of clauses, by code; statements are compared by `_check_statements`."""
    return {criterion.code: criterion.model_dump(exclude={"statement"}) for criterion in criteria}


def _check_statements(stored: Sequence[Criterion], again: Sequence[Criterion]) -> Check:
    """Compares the clauses' statements; other wording, as of another version of the workbench, is reported as not checked."""
    said = {criterion.code: criterion.statement for criterion in stored}
    others = [criterion.code for criterion in again if said.get(criterion.code) != criterion.statement]
    if not others:
        return ok("statements", f"{len(again)} clauses are worded as by this workbench")
    return not_checked("statements", f"{', '.join(others)}: worded otherwise than by this workbench, their figures are checked")
