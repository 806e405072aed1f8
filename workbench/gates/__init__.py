"""Gates: a question, its experiment and a verdict with evidence. `find_gate` finds one by name."""

import importlib

from workbench.errors import BadInput, did_you_mean
from workbench.gates.base import Gate

GATES = {
    "a_storage": "workbench.gates.a_storage",
    "b_locality": "workbench.gates.b_locality",
    "c_overlap": "workbench.gates.c_overlap",
}
"""Package of each gate by name, in the order they are walked; it exports `GATE`."""


def find_gate(word: str) -> Gate:
    """The gate called `b_locality`, `B` or `b`. Raises BadInput suggesting the nearest name."""
    wanted = word.lower().removeprefix("gate_")
    for name in GATES:
        if wanted in (name, name[0], name.partition("_")[2]):
            gate: Gate = importlib.import_module(GATES[name]).GATE
            return gate
    there_are = f"there are {', '.join(GATES)}"
    known = [*GATES, *(name.partition("_")[2] for name in GATES)]
    raise BadInput(f"no such gate: {word!r}; {did_you_mean(wanted, known, otherwise=there_are)}")


def all_gates() -> list[Gate]:
    """Every gate that exists, in order."""
    return [find_gate(name) for name in GATES]
