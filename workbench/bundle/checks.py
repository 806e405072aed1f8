"""What a check of a bundle says, line by line."""

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """How one check ended."""

    OK = "ok"
    FAILED = "FAILED"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True, kw_only=True)
class Check:
    """One line of the report."""

    what: str
    """What was looked at: a file, a run, the verdict."""
    state: State
    """How it ended."""
    detail: str
    """Where it differs, or why it could not be checked."""


def ok(what: str, detail: str = "") -> Check:
    """It holds."""
    return Check(what=what, state=State.OK, detail=detail)


def failed(what: str, detail: str) -> Check:
    """It does not hold."""
    return Check(what=what, state=State.FAILED, detail=detail)


def not_checked(what: str, detail: str) -> Check:
    """It can't be known here."""
    return Check(what=what, state=State.NOT_CHECKED, detail=detail)
