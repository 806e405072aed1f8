"""The gate table: state, verdict and next command of each gate."""

from pathlib import Path
from typing import Any

from workbench.gates.base import Gate, State, age_s, gate_state
from workbench.schema import Criterion

_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"))


def overview_rows(gates: list[Gate], profile: str, root: Path) -> list[dict[str, Any]]:
    """One row per gate: gate, state, verdict, age, next command."""
    return [_row(gate, gate_state(gate, profile, root), profile) for gate in gates]


def criterion_row(criterion: Criterion) -> dict[str, Any]:
    """A clause with its figures, for a table."""
    return {
        "clause": criterion.code,
        "what": criterion.statement,
        "value": criterion.value,
        "low": criterion.low,
        "high": criterion.high,
        "must be": f"{criterion.relation} {criterion.threshold:g}",
        "outcome": criterion.outcome.value,
    }


def _row(gate: Gate, state: State, profile: str) -> dict[str, Any]:
    smoke = state.folder is not None and state.folder.environment["tags"].get("smoke") == "true"
    return {
        "gate": f"{gate.letter} {gate.name[2:].replace('_', ' ')}",
        "state": _state_words(state) + (" (smoke)" if smoke else ""),
        "verdict": f"{state.verdict.outcome.value} ({', '.join(state.verdict.codes)})" if state.verdict else None,
        "age": _age_words(age_s(state.folder)) if state.folder else None,
        "next": _next_command(gate, state, profile, smoke=smoke),
    }


def _state_words(state: State) -> str:
    if not state.reasons:
        return state.word
    more = f" and {len(state.reasons) - 1} more" if len(state.reasons) > 1 else ""
    return f"{state.word}: {state.reasons[0]}{more}"


def _next_command(gate: Gate, state: State, profile: str, *, smoke: bool) -> str:
    option = "" if profile == "mini" else f" --profile {profile}"
    if state.word == "running":
        return "wait"
    if state.word == "fresh" and not smoke:
        return f"workbench notebook {gate.name}{option}"
    return f"workbench gate {gate.name}{option}"


def _age_words(seconds: float) -> str:
    for size, word in _UNITS:
        if seconds >= size:
            return f"{seconds / size:.0f} {word}"
    return f"{seconds:.0f} s"
