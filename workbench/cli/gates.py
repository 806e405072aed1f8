"""`workbench` alone, `workbench gate` and `workbench notebook`: state of the gates, and their verdicts."""

import shlex
import sys
from typing import Annotated, Any

from cyclopts import App, Parameter

from workbench.cli.output import print_json, print_table
from workbench.cli.track import file_results
from workbench.errors import BadInput, UnmetPrerequisite, did_you_mean
from workbench.gates import all_gates, find_gate
from workbench.gates.base import Gate, run_gate
from workbench.gates.overview import criterion_row, overview_rows
from workbench.paths import runs_folder
from workbench.schema import RunFolder, Verdict


def register(app: App) -> None:
    """Adds the commands; the gate table is what `workbench` prints when nothing is asked."""
    app.default(overview(app))
    app.command(gate)
    app.command(notebook)


def overview(app: App) -> Any:
    """The command that shows the gate table and refuses words that are no command of `app`."""

    def overview(*words: Annotated[str, Parameter(show=False)], profile: str = "mini", json: bool = False) -> None:
        """Shows where each gate stands and what to type next.

        Parameters
        ----------
        words
            Nothing: a word here is a command that does not exist.
        profile
            mini, slice or flash-next.
        json
            One JSON document instead of a table.
        """
        if words:
            known = [name for name in app if not name.startswith("-")]
            hint = did_you_mean(words[0], known, otherwise="see workbench --help")
            raise BadInput(f"no such command: {words[0]!r}; {hint}")
        rows = overview_rows(all_gates(), profile, runs_folder())
        if json:
            print_json("gates", {"profile": profile, "gates": rows})
            return
        print_table(rows)

    return overview


def gate(
    name: str,
    *,
    profile: str = "mini",
    settings: Annotated[tuple[str, ...], Parameter(name="--set", negative=())] = (),
    smoke: bool = False,
    anyway: bool = False,
    again: bool = False,
    json: bool = False,
) -> int:
    """Runs a gate, or all of them, to its verdict; a fresh result is reused.

    Exit status: 0 pass, 1 fail, 4 inconclusive; for `all`, 0 when every gate reached a verdict.

    Example: workbench gate b_locality --set resamples=5000

    Parameters
    ----------
    name
        A gate's letter or name, or all.
    profile
        mini, slice or flash-next.
    settings
        A setting, key=value; may be repeated.
    smoke
        A small run that shows that the gate works; never a full pass.
    anyway
        Run although a predecessor has not passed; the verdict then says so.
    again
        Run although a fresh result exists.
    json
        One JSON document instead of tables.
    """
    chosen = all_gates() if name == "all" else [find_gate(name)]
    folders, unmet = [], None
    for each in chosen:
        try:
            folders.append(_walk(each, profile, settings, smoke=smoke, anyway=anyway, again=again))
        except UnmetPrerequisite as error:
            if name != "all":
                raise
            unmet = error
            _say(f"gate {each.letter}: {error}")
        except KeyboardInterrupt:
            _say(f"finished results are kept; to resume: workbench {' '.join(sys.argv[1:])}")
            raise
    _show(chosen, folders, json=json)
    file_results(runs_folder())
    verdicts = [_verdict(folder) for folder in folders]
    if name != "all":
        return verdicts[0].outcome.exit_code
    if not json:
        _close_walk(chosen, profile)
    return unmet.exit_code if unmet else 0


def notebook(
    name: str,
    *,
    profile: str = "mini",
    settings: Annotated[tuple[str, ...], Parameter(name="--set", negative=())] = (),
    smoke: bool = False,
) -> None:
    """Executes a notebook without a browser; the executed copy and an HTML page become artifacts of a run folder.

    Example: workbench notebook b_locality --smoke

    Parameters
    ----------
    name
        start, or a gate's letter or name.
    profile
        mini, slice or flash-next.
    settings
        A setting of the gate, key=value; may be repeated.
    smoke
        Small sizes.
    """
    from workbench.gates.notebooks import NotebookConfig, run_notebook

    config = NotebookConfig.build({"name": name, "profile": profile, "settings": settings, "smoke": smoke})
    folder = run_notebook(config, root=runs_folder())
    for path in sorted(folder.artifacts.glob("*.html")):
        print(path)
    file_results(runs_folder())


def _walk(gate: Gate, profile: str, settings: tuple[str, ...], *, smoke: bool, anyway: bool, again: bool) -> RunFolder:
    config = gate.configure(profile=profile, smoke=smoke, settings=settings)
    return run_gate(gate, config, root=runs_folder(), anyway=anyway, again=again, note=_say)


def _show(chosen: list[Gate], folders: list[RunFolder], *, json: bool) -> None:
    by_kind = {folder.path.parent.name: folder for folder in folders}
    runs = [(gate, by_kind[gate.kind]) for gate in chosen if gate.kind in by_kind]
    if json:
        print_json("gate", {"gates": [_as_json(gate, folder) for gate, folder in runs]})
        return
    for gate, folder in runs:
        _print_run(gate, folder)


def _as_json(gate: Gate, folder: RunFolder) -> dict[str, Any]:
    result = folder.result
    return {"gate": gate.name, "folder": str(folder.path), **(result.model_dump(mode="json") if result else {})}


def _print_run(gate: Gate, folder: RunFolder) -> None:
    result, verdict = folder.result, _verdict(folder)
    print(f"\n# Gate {gate.letter}: {gate.question}\n")
    print(f"**{verdict.outcome.value.upper()}** ({', '.join(verdict.codes)}). {verdict.summary}\n")
    print_table([criterion_row(criterion) for criterion in verdict.criteria])
    for name, title in gate.shown.items():
        print_table(result.tables[name] if result else [], title)
    print("\nRests on:\n" + "\n".join(f"- {condition}" for condition in verdict.conditions))
    _say(f"result: {folder.path}")
    words = [word for word in folder.environment["command"][1:] if word != "--again"]
    _say(f"again: {shlex.join(['workbench', *words, '--again'])}")


def _close_walk(chosen: list[Gate], profile: str) -> None:
    print_table(overview_rows(chosen, profile, runs_folder()), "Verdicts")
    print("\nLook closer: `make lab` (JupyterLab on the notebooks), `make ui` (MLflow on the results)")


def _verdict(folder: RunFolder) -> Verdict:
    result = folder.result
    if result is None or result.verdict is None:
        raise ValueError(f"{folder.path} ended without a verdict")
    return result.verdict


def _say(line: str) -> None:
    print(line, file=sys.stderr)
