"""`workbench abba`, `verdicts`, `report`, `bundle` and `check`: comparisons, conclusions and what others can check."""

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from workbench.cli.output import print_json, print_table
from workbench.cli.track import file_results
from workbench.config import read_toml
from workbench.errors import BadInput
from workbench.paths import runs_folder
from workbench.schema import RunFolder, list_runs


def register(app: App) -> None:
    """Adds the commands."""
    app.command(abba)


def abba(
    *,
    base: Path | None = None,
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

    Exit status: 0 better (or, of A against A, no difference), 1 worse or no gain, 4 inconclusive.

    Example: workbench abba --change runtime.policy=lru --cohorts 4

    Parameters
    ----------
    base
        TOML file with the settings of a generate run, arm A; the defaults and a held-out prompt where nothing is said.
    change
        A setting that arm B differs in, key=value; may be repeated. Without one, A is compared with A.
    cohorts
        Valid cohorts that end the series: 6 where nothing is said, 1 to 3 are indicative.
    metric
        What is compared: e2e/decode_tps where nothing is said.
    better
        Which way the metric improves, where its unit does not say.
    cache_state
        What a timed arm starts from: cold_process where nothing is said.
    minimum_effect
        Smallest gain worth having, a fraction: 0.02 where nothing is said.
    settings
        Any other setting of the comparison, e.g. drift_limit=0.02; may be repeated.
    resume
        Goes on with an interrupted comparison: the name of its folder.
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
        config = compare_generate(read_toml(base) if base else {}, change, values, settings)
        folder = run_abba(config, root=runs_folder(), note=_say)
    _print_comparison(folder, json=json)
    file_results(runs_folder())
    result = folder.result
    assert result is not None
    assert result.verdict is not None
    return result.verdict.outcome.exit_code


def find_run(name: str, kind: str | None = None) -> RunFolder:
    """A result folder by its path, `<kind>/<id>`, id, or the beginning of an id. Raises BadInput when it isn't one."""
    if (Path(name) / "environment.json").exists():
        return RunFolder(Path(name))
    found = [f for f in list_runs(runs_folder(), kind) if f.path.name.startswith(name) or _place(f) == name]
    if len(found) != 1:
        several = f"; {len(found)} begin so" if found else ""
        raise BadInput(f"no such run in {runs_folder()}: {name!r}{several} (workbench verdicts lists those with a verdict)")
    return found[0]


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
    print("\nRests on:\n" + "\n".join(f"- {condition}" for condition in verdict.conditions))
    _say(f"result: {folder.path}")


def _say(line: str) -> None:
    print(line, file=sys.stderr)
