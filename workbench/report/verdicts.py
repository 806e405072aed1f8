"""Every verdict there is. None is ever overwritten: a newer one on the same question supersedes it, and both stay."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from workbench.report.runs import Run
from workbench.schema import Verdict


@dataclass(frozen=True, kw_only=True)
class VerdictEntry:
    """One verdict and the newer one that superseded it, if any."""

    run: Run
    verdict: Verdict
    superseded_by: str | None
    """Folder of the newer verdict on the same question."""

    @property
    def is_current(self) -> bool:
        """Whether no newer verdict answers the same question."""
        return self.superseded_by is None

    def row(self) -> dict[str, Any]:
        """Row for a table."""
        return {
            "run": self.run.place,
            "verdict": self.verdict.outcome.value,
            "codes": ", ".join(self.verdict.codes),
            "evidence": self.run.about["evidence"],
            "profile": self.run.about["profile"],
            "enables": "; ".join(self.verdict.enables) or "nothing",
            "rests on": "; ".join(self.verdict.conditions) or "nothing else",
            "superseded by": self.superseded_by,
        }


def collect_verdicts(runs: Iterable[Run]) -> list[VerdictEntry]:
    """Verdicts of `runs` (oldest first), newest first. A full run supersedes smoke runs, a smoke run never a full one."""
    entries: list[VerdictEntry] = []
    newest: dict[tuple[str, ...], str] = {}
    newest_full: dict[tuple[str, ...], str] = {}
    for run in reversed(list(runs)):
        if run.result is None or run.result.verdict is None:
            continue
        question, smoke = _question(run), run.tags.get("smoke") == "true"
        superseded_by = (newest if smoke else newest_full).get(question)
        entries.append(VerdictEntry(run=run, verdict=run.result.verdict, superseded_by=superseded_by))
        newest.setdefault(question, run.place)
        if not smoke:
            newest_full.setdefault(question, run.place)
    return entries


def _question(run: Run) -> tuple[str, ...]:
    """Question of a verdict: a gate on a profile, or a change of a plan."""
    return (run.about["kind"], run.about["profile"], run.about["evidence"], run.tags.get("question", ""))
