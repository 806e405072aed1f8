"""Claims that the results do not show, derived from the result folders."""

from collections.abc import Iterable, Iterator, Sequence

from workbench.report.runs import Run
from workbench.report.verdicts import VerdictEntry
from workbench.schema import Evidence, Outcome

GATE_LETTERS = "ABCDEFG"
_NO_APPLE = "Everything that needs Apple hardware (Metal kernels, MTLIO, unified memory): no result here was made on any."


def unproven(runs: Sequence[Run], verdicts: Sequence[VerdictEntry], claims: Sequence[str]) -> list[str]:
    """Sentences, the most general first; `claims` are claims of tests that run only on a Mac."""
    runs = [run for run in runs if not run.problem]
    hardware = list(_hardware(runs))
    elsewhere = [f"Shown by a test on a Mac alone: {claim}." for claim in claims] if _NO_APPLE in hardware else []
    return [*hardware, *_gates(verdicts), *_comparisons(verdicts), *_caches(runs), *elsewhere]


def _hardware(runs: Sequence[Run]) -> Iterator[str]:
    machines = [run.about["machine"] for run in runs]
    apple = [m for m in machines if m["system"] == "Darwin" and m["architecture"] == "arm64"]
    if not apple:
        yield _NO_APPLE
    if not any(run.about["profile"] == "flash-next" for run in runs):
        yield "Everything about the full-size model: no result here ran profile flash-next."


def _gates(verdicts: Sequence[VerdictEntry]) -> Iterator[str]:
    passed = {_letter(entry) for entry in verdicts if _is_physical_pass(entry)}
    missing = [letter for letter in GATE_LETTERS if letter not in passed - {""}]
    if missing:
        yield f"Gates without a physical pass: {', '.join(missing)}."
    traces = {_letter(entry) for entry in verdicts if entry.is_current and entry.run.about["evidence"] == Evidence.TRACE}
    if letters := sorted(traces - {""}):
        yield f"Gate {', '.join(letters)} rests on traces and simulated curves: no time was measured for it."


def _letter(entry: VerdictEntry) -> str:
    kind = str(entry.run.about["kind"])
    return kind[-1].upper() if kind.startswith("gate_") else ""


def _is_physical_pass(entry: VerdictEntry) -> bool:
    physical = entry.run.about["evidence"] == Evidence.PHYSICAL
    return entry.is_current and physical and entry.verdict.outcome is Outcome.PASS


def _comparisons(verdicts: Sequence[VerdictEntry]) -> Iterator[str]:
    series = [entry for entry in verdicts if entry.run.about["kind"] == "abba" and entry.is_current]
    if not any(entry.verdict.outcome is not Outcome.INCONCLUSIVE for entry in series):
        yield "Any gain or loss of one setting against another: no comparison has reached a conclusion."


def _caches(runs: Iterable[Run]) -> Iterator[str]:
    guests = {run.about["machine"]["digest"] for run in runs if run.about["machine"]["virtual_machine"]}
    if guests:
        yield f"Cold reads on {len(guests)} virtual machine(s): only the guest's page cache could be looked at."
