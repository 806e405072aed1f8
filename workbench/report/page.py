"""Renders the report: one HTML file that loads nothing, claim boundary first."""

import base64
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from workbench import __version__
from workbench.files import write_atomically
from workbench.gates import GATES, find_gate
from workbench.gates.overview import criterion_row, overview_rows
from workbench.markdown import format_cell
from workbench.report.figures import COLOURS, cohort_plot, is_known, token_bar
from workbench.report.runs import Run, newest, read_runs
from workbench.report.unproven import GATE_LETTERS, unproven
from workbench.report.verdicts import VerdictEntry, collect_verdicts
from workbench.report.waterfall import Waterfall, waterfall
from workbench.schema import Evidence, Status

CLAIM_BOUNDARY = (
    "This note does not establish expert-predictor accuracy, an M5 SSD bandwidth figure, a winning DFlash block size, an "
    "ExpertMajor codec, end-to-end acceleration, quality parity, or Qwen4Exp runtime support. Every mechanism remains gated by "
    "physical traces and exact target-state tests."
)
"""Summary of the hypothesis note that the project began with."""

_MAX_WATERFALLS = 4
_MAX_COMPARISONS = 12
_MAX_ROWS = 30
_COHORT_COLUMNS = ("cohort", "1A", "2B", "3B", "4A", "ratio", "control_drift", "candidate_spread", "reasons")


def write_report(root: Path, out: Path, *, profile: str = "mini", claims: Sequence[str] = ()) -> Path:
    """Writes the page for everything under `root` to `out`, and returns it; arguments are those of `render`."""
    write_atomically(out, render(root, profile=profile, claims=claims).encode())
    return out


def render(root: Path, *, profile: str = "mini", claims: Sequence[str] = ()) -> str:
    """The page as HTML. `profile` is the one whose gates are shown, `claims` of tests that run only on a Mac."""
    runs = read_runs(root)
    verdicts = collect_verdicts(runs)
    pages = Environment(
        loader=PackageLoader("workbench.report", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    pages.filters["cell"] = lambda value: format_cell(value).replace("\\|", "|")
    falls = _waterfalls(runs)
    return pages.get_template("page.html.j2").render(
        claim=CLAIM_BOUNDARY,
        version=__version__,
        made=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        profile=profile,
        machines=_machines(runs),
        gates=_gates(root, profile, verdicts),
        waterfalls=[(fall, token_bar(fall, _longest_ms(falls))) for fall in falls],
        colours=COLOURS,
        comparisons=_comparisons(verdicts),
        verdicts=verdicts,
        findings=_findings(runs)[:_MAX_ROWS],
        evidence=_evidence(runs),
        unfinished=_unfinished(runs)[:_MAX_ROWS],
        unproven=unproven(runs, verdicts, claims),
        num_runs=len(runs),
    )


def _machines(runs: Sequence[Run]) -> list[str]:
    seen = {run.about["machine"]["digest"]: run.about["machine"] for run in runs if not run.problem}
    return [f"{m['cpu']}, {m['num_cores']} cores, {m['memory_bytes'] / 1e9:.0f} GB, {m['system']}" for m in seen.values()]


def _gates(root: Path, profile: str, verdicts: Sequence[VerdictEntry]) -> list[dict[str, Any]]:
    known = {name[0].upper(): name for name in GATES}
    gates: list[dict[str, Any]] = []
    for letter in GATE_LETTERS:
        if letter not in known:
            gates.append({"letter": letter, "row": None, "entry": None})
            continue
        gate = find_gate(known[letter])
        of_gate = [v for v in verdicts if v.run.about["kind"] == gate.kind and v.run.about["profile"] == profile]
        entry = next((v for v in of_gate if v.is_current), None)
        gates.append(
            {
                "letter": letter,
                "question": gate.question,
                "row": overview_rows([gate], profile, root)[0],
                "entry": entry,
                "criteria": [criterion_row(criterion) for criterion in entry.verdict.criteria] if entry else [],
                "figures": _figures(entry.run) if entry else [],
            }
        )
    return gates


def _figures(run: Run) -> list[tuple[str, str]]:
    """Figures of a run by name, as data addresses."""
    files = sorted((run.folder.artifacts / "figures").glob("*.png"))
    return [(path.stem, f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}") for path in files]


def _waterfalls(runs: Sequence[Run]) -> list[Waterfall]:
    """The newest run of each profile, evidence and way to hold experts, with its attribution where there is one."""
    found: dict[tuple[str, ...], Waterfall] = {}
    for run in newest(runs, "generate"):
        key = (run.about["profile"], run.about["evidence"], run.tags.get("arm", ""))
        if len(found) < _MAX_WATERFALLS and key not in found and (fall := waterfall(run)):
            found[key] = fall
    return list(found.values())


def _longest_ms(falls: Sequence[Waterfall]) -> float:
    return max((max(fall.token_ms, fall.bound_ms or 0.0) for fall in falls), default=1.0)


def _comparisons(verdicts: Sequence[VerdictEntry]) -> list[dict[str, Any]]:
    shown = [entry for entry in verdicts if entry.run.about["kind"] == "abba" and entry.is_current][:_MAX_COMPARISONS]
    return [_comparison(entry) for entry in shown]


def _comparison(entry: VerdictEntry) -> dict[str, Any]:
    result = entry.run.result
    assert result is not None
    cohorts = result.tables.get("cohorts", [])
    thresholds = [criterion.threshold for criterion in entry.verdict.criteria if criterion.code == "abba.minimum_effect"]
    has_ratio = any(is_known(row.get("ratio")) for row in cohorts)
    return {
        "entry": entry,
        "tags": result.tags,
        "plot": cohort_plot(cohorts, result.metrics, thresholds) if has_ratio else "",
        "cohorts": [{name: row.get(name) for name in _COHORT_COLUMNS} for row in cohorts],
        "criteria": [criterion_row(criterion) for criterion in entry.verdict.criteria],
    }


def _findings(runs: Sequence[Run]) -> list[dict[str, Any]]:
    rows = [(run, finding) for run in reversed(runs) if run.result for finding in run.result.tables.get("findings", [])]
    return [{"run": run.place, "detector": finding["code"], "what it saw": finding["statement"]} for run, finding in rows]


def _evidence(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Number of runs by kind and evidence."""
    counts = Counter((run.about["kind"], run.about["evidence"]) for run in runs if not run.problem)
    kinds = sorted({kind for kind, _ in counts})
    return [{"kind": kind, **{e.value: counts.get((kind, e.value)) for e in Evidence}} for kind in kinds]


def _unfinished(runs: Sequence[Run]) -> list[dict[str, Any]]:
    rows = [run for run in reversed(runs) if run.status is not Status.FINISHED]
    return [{"run": run.place, "status": run.status.value, "why": run.why} for run in rows]
