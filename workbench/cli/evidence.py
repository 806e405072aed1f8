"""`workbench abba`, `verdicts`, `report`, `bundle` and `check`: comparisons, conclusions, and bundles that others can check."""

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from workbench.cli.output import OutputFile, print_json, print_table
from workbench.cli.track import file_results
from workbench.config import overlay, read_toml
from workbench.errors import BadInput
from workbench.paths import home, runs_folder
from workbench.schema import RunFolder, list_runs


def register(app: App) -> None:
    """Adds the commands."""
    app.command(abba)
    app.command(verdicts)
    app.command(report)
    app.command(bundle)
    app.command(check)


def abba(
    *,
    base: Path | None = None,
    profile: str | None = None,
    change: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    cohorts: int | None = None,
    metric: str | None = None,
    better: Literal["higher", "lower"] | None = None,
    cache_state: Literal["cold_process", "cold_store", "warm_store", "hot_cache"] | None = None,
    minimum_effect: float | None = None,
    settings: Annotated[tuple[str, ...], Parameter(name="--set", negative=())] = (),
    resume: str | None = None,
    json: bool = False,
) -> int:
    """Compares two generate runs in cohorts A1 B1 B2 A2 of separate, watched processes; a verdict needs 4 valid cohorts.

    Exit status: 0 better (for A against A: no difference), 1 worse or no gain, 4 inconclusive.

    Example: workbench abba --change runtime.policy=lru --cohorts 4

    Parameters
    ----------
    base
        TOML file with the settings of a generate run, arm A; without it, the defaults and a held-out prompt.
    profile
        mini, slice or flash-next; default: the base's, else mini.
    change
        A setting that arm B differs in, key=value; may be repeated. Without one, A is compared with A.
    cohorts
        Valid cohorts that end the series; default 6; 1 to 3 are indicative.
    metric
        The compared metric; default e2e/decode_tps.
    better
        Which way the metric improves, if its unit does not tell.
    cache_state
        State of the caches at the start of a timed arm; default cold_process.
    minimum_effect
        Smallest gain worth having, a fraction; default 0.02.
    settings
        Any other setting of the comparison, e.g. drift_limit=0.02; may be repeated.
    resume
        Name of the folder of an interrupted comparison to continue.
    json
        One JSON document instead of tables.
    """
    from workbench.abba.plans import compare_generate
    from workbench.abba.runner import resume_abba, run_abba

    if resume is not None:
        folder = resume_abba(find_run(resume, "abba"), note=_say)
    else:
        values = {
            "cohorts": cohorts,
            "metric": metric,
            "better": better,
            "cache_state": cache_state,
            "minimum_effect": minimum_effect,
        }
        plan = overlay(read_toml(base) if base else {}, {"profile": profile})
        config = compare_generate(plan, change, values, settings)
        folder = run_abba(config, root=runs_folder(), note=_say)
    _print_comparison(folder, json=json)
    file_results(runs_folder())
    result = folder.result
    assert result is not None
    assert result.verdict is not None
    return result.verdict.outcome.exit_code


def verdicts(*, everything: Annotated[bool, Parameter(name="--all", negative=())] = False, json: bool = False) -> None:
    """Lists the verdicts with their codes, conditions and the decisions they allow. Verdicts are superseded, never overwritten.

    Example: workbench verdicts --all

    Parameters
    ----------
    everything
        Show superseded verdicts as well: those with a newer verdict on the same question.
    json
        One JSON document instead of a table.
    """
    from workbench.report.runs import read_runs
    from workbench.report.verdicts import collect_verdicts

    entries = collect_verdicts(read_runs(runs_folder()))
    shown = [entry for entry in entries if everything or entry.is_current]
    if json:
        documents = [entry.row() | {"criteria": entry.verdict.model_dump(mode="json")["criteria"]} for entry in shown]
        print_json("verdicts", {"verdicts": documents})
        return
    print_table([entry.row() for entry in shown])
    if hidden := len(entries) - len(shown):
        _say(f"superseded verdicts that are not shown: {hidden} (--all shows them)")


def report(*, out: OutputFile | None = None, profile: str = "mini") -> None:
    """Renders one self-contained HTML page from all results and prints its path.

    Example: workbench report --out report.html

    Parameters
    ----------
    out
        The HTML file; default runs/report.html.
    profile
        Profile whose gates are shown.
    """
    from workbench.doctor import unproven
    from workbench.report.page import write_report

    target = out or runs_folder() / "report.html"
    print(write_report(runs_folder(), target, profile=profile, claims=unproven(home() / "tests")))


def bundle(run: str, *, out: OutputFile | None = None) -> None:
    """Puts a finished run with its arms, raw events and digests into one file that anybody can check.

    Example: workbench bundle abba/20261130-004700628-daaa

    Parameters
    ----------
    run
        The run's folder, <kind>/<id>, or the beginning of its id.
    out
        The bundle's file; default <kind>-<id>.bundle.tar in the working folder.
    """
    from workbench.bundle.make import SUFFIX, make_bundle

    folder = find_run(run)
    target = out or Path(f"{folder.path.parent.name}-{folder.path.name}{SUFFIX}")
    manifest = make_bundle(folder, target)
    print(target)
    _say(f"{len(manifest.files)} files; quote this beside it: content digest {manifest.content_digest}")
    _say(f"anybody checks it with: workbench check {target.name}")


def check(file: Path, *, json: bool = False) -> int:
    """Computes verdict, metrics and digests of a bundle again from its raw data, and lists what the bundle does not let it check.

    Exit status: 0 when no check failed, 1 when one failed, 2 for a file that is not a bundle or not safe to read.

    Example: workbench check abba-20261130-004700628-daaa.bundle.tar

    Parameters
    ----------
    file
        The bundle.
    json
        One JSON document instead of a table.
    """
    from workbench.bundle import State, check_bundle

    manifest, checks = check_bundle(file)
    rows = [{"what": each.what, "state": each.state.value, "detail": each.detail} for each in checks]
    failed = [each for each in checks if each.state is State.FAILED]
    if json:
        print_json("check", {"file": str(file), "content_digest": manifest.content_digest, "passed": not failed, "checks": rows})
        return int(bool(failed))
    print_table(rows, f"{manifest.kind}/{manifest.run_id}, made by workbench {manifest.workbench}")
    counts = {state: sum(each.state is state for each in checks) for state in State}
    print("\n" + ", ".join(f"{count} {state.value}" for state, count in counts.items()))
    return int(bool(failed))


def find_run(name: str, kind: str | None = None) -> RunFolder:
    """The result folder with this path, `<kind>/<id>`, id, or beginning of an id. Raises BadInput unless it is exactly one."""
    if os.path.lexists(Path(name) / "environment.json"):
        return _sound(RunFolder(Path(name)))
    found = [f for f in list_runs(runs_folder(), kind) if f.path.name.startswith(name) or _place(f) == name]
    if len(found) != 1:
        several = f"; {len(found)} runs match" if found else ""
        raise BadInput(f"no such run in {runs_folder()}: {name!r}{several} (workbench verdicts lists those with a verdict)")
    return found[0]


def _sound(folder: RunFolder) -> RunFolder:
    if damage := folder.damage:
        raise BadInput(f"a damaged run folder: {damage}")
    return folder


def _place(folder: RunFolder) -> str:
    return f"{folder.path.parent.name}/{folder.path.name}"


def _print_comparison(folder: RunFolder, *, json: bool) -> None:
    result = folder.result
    assert result is not None
    if json:
        print_json("abba", {"folder": str(folder.path), **result.model_dump(mode="json")})
        return
    verdict = result.verdict
    assert verdict is not None
    print(f"\n**{verdict.outcome.value.upper()}** ({', '.join(verdict.codes)}). {verdict.summary}")
    print_table(result.tables["cohorts"], f"{result.tags['metric']}, {result.evidence.value}, B: {result.tags['change']}")
    if result.tables["findings"]:
        print_table(result.tables["findings"], "Findings of the detectors")
    print("\nRests on:\n" + "\n".join(f"- {condition}" for condition in verdict.conditions))
    _say(f"result: {folder.path}")


def _say(line: str) -> None:
    print(line, file=sys.stderr)
