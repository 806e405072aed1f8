"""Verdicts: pass, fail or inconclusive, from criteria whose thresholds were fixed before the run."""

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Literal

from pydantic import ConfigDict

from workbench.config import Config


class Outcome(StrEnum):
    """Outcome of a criterion or a verdict."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"

    @property
    def exit_code(self) -> int:
        """Exit status of a command that ends in this outcome: 0 pass, 1 fail, 4 inconclusive."""
        return {Outcome.PASS: 0, Outcome.FAIL: 1, Outcome.INCONCLUSIVE: 4}[self]


class Criterion(Config):
    """One pre-registered clause with its measured value."""

    model_config = ConfigDict(allow_inf_nan=True)

    code: str
    """Clause code, e.g. `B.locality`."""
    statement: str
    """What must hold, in words."""
    value: float
    """The measured value."""
    low: float
    """Lower end of its 95 % interval."""
    high: float
    """Upper end of its 95 % interval."""
    relation: Literal["<", "<=", ">", ">="]
    """Relation that `value` must have to `threshold`."""
    threshold: float
    """Fixed in the configuration before the first read."""

    @property
    def outcome(self) -> Outcome:
        """Pass when the whole interval satisfies the relation, fail when none of it does, else (or without one) inconclusive."""
        if math.isnan(self.low) or math.isnan(self.high):
            return Outcome.INCONCLUSIVE
        held = [_holds(end, self.relation, self.threshold) for end in (self.low, self.high)]
        if all(held):
            return Outcome.PASS
        return Outcome.INCONCLUSIVE if any(held) else Outcome.FAIL


def _holds(value: float, relation: str, threshold: float) -> bool:
    return {"<": value < threshold, "<=": value <= threshold, ">": value > threshold, ">=": value >= threshold}[relation]


class Verdict(Config):
    """A gate's or comparison's conclusion."""

    outcome: Outcome
    """The conclusion."""
    codes: tuple[str, ...]
    """Clause codes that decided: the failing ones, else those whose interval contains the threshold, else all."""
    criteria: tuple[Criterion, ...]
    """Every clause with its figures."""
    conditions: tuple[str, ...] = ()
    """Conditions under which the verdict is valid, e.g. `simulated curves`, `conditional on gate A`."""
    enables: tuple[str, ...] = ()
    """Decisions that this verdict allows."""
    summary: str = ""
    """One sentence for people."""


def decide(
    criteria: Sequence[Criterion], *, conditions: Sequence[str] = (), enables: Sequence[str] = (), summary: str = ""
) -> Verdict:
    """The verdict on clauses: fail if one fails, else inconclusive if one is undecided, else pass; with these clauses' codes.

    Raises ValueError without criteria: a verdict without its clause codes is an error.
    """
    if not criteria:
        raise ValueError("a verdict needs its criteria")
    by_outcome = {outcome: tuple(c.code for c in criteria if c.outcome is outcome) for outcome in Outcome}
    outcome = next(o for o in (Outcome.FAIL, Outcome.INCONCLUSIVE, Outcome.PASS) if by_outcome[o])
    return Verdict(
        outcome=outcome,
        codes=by_outcome[outcome],
        criteria=tuple(criteria),
        conditions=tuple(conditions),
        enables=tuple(enables) if outcome is Outcome.PASS else (),
        summary=summary,
    )
