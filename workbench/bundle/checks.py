"""Lines of the report of a bundle's check."""

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """How one check ended."""

    OK = "ok"
    FAILED = "FAILED"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True, kw_only=True)
class Check:
    """One line of the result of `workbench check`."""

    what: str
    """The checked object: a file, a run, the verdict."""
    state: State
    """How the check ended."""
    detail: str
    """Where the object differs, or why it could not be checked."""


def ok(what: str, detail: str = "") -> Check:
    """A check that passed."""
    return Check(what=what, state=State.OK, detail=detail)


def failed(what: str, detail: str) -> Check:
    """A check that failed."""
    return Check(what=what, state=State.FAILED, detail=detail)


def not_checked(what: str, detail: str) -> Check:
    """A check that is not possible here."""
    return Check(what=what, state=State.NOT_CHECKED, detail=detail)
