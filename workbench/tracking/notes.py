"""The note at the top of a run's MLflow page: the verdict, its figures, and the command that repeats the run."""

import shlex
from collections.abc import Iterator
from typing import Any

from workbench.markdown import format_cell
from workbench.schema import Result, Verdict


def run_note(about: dict[str, Any], result: Result | None, place: str) -> str:
    """Markdown for a run: `about` is its environment, `place` its folder."""
    lines = list(_headline(result))
    if result and result.verdict:
        lines += _verdict_lines(result.verdict)
    lines += [
        f"Evidence: **{about['evidence']}**, profile {about['profile']}, machine {about['machine']['digest']}",
        f"Again: `{shlex.join(['workbench', *about['command'][1:]])}`",
        f"Folder: `{place}`",
    ]
    return "\n\n".join(lines)


def _headline(result: Result | None) -> Iterator[str]:
    if result is None:
        yield "**did not finish**: the run's process is gone"
    elif result.verdict:
        yield f"## {result.verdict.outcome.value.upper()}: {', '.join(result.verdict.codes)}"
        yield result.verdict.summary
    elif result.error:
        yield f"**{result.status.value}**: {result.error}"


def _verdict_lines(verdict: Verdict) -> list[str]:
    rows = []
    for c in verdict.criteria:
        figures = f"{c.value:.4g} ({c.low:.4g} to {c.high:.4g})"
        rows.append(f"| {c.code} | {format_cell(c.statement)} | {figures} | {c.relation} {c.threshold:g} | {c.outcome.value} |")
    table = "\n".join(["| clause | what | value (95 %) | must be | outcome |", "|---|---|---|---|---|", *rows])
    conditions = "\n".join(f"- {condition}" for condition in verdict.conditions)
    return [table, f"Rests on:\n\n{conditions}"] if conditions else [table]
