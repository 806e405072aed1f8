"""Errors that users cause and can fix: one clear line each (what, where, what to do), an exit status, no traceback."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

_LONGEST_WORD = 300
"""Paths are words of a message, too."""


class BadInput(ValueError):
    """A file, argument or setting that can't be used. Exit status 2."""

    exit_code = 2


class UnmetPrerequisite(RuntimeError):
    """Something that must exist first, with the command that makes it. Exit status 3."""

    exit_code = 3


def shortened(text: str, most: int = 60) -> str:
    """A text for a message, cut after `most` characters."""
    return text if len(text) <= most else text[:most] + "..."


def one_line(text: str) -> str:
    """A message on one line that can be read.

    Characters that would break it, or that no terminal can show, become escapes; the end of a word of 5,000 digits is cut.
    """
    shown = "".join(each if each.isprintable() else each.encode("unicode_escape", "surrogatepass").decode() for each in text)
    return re.sub(rf"\S{{{_LONGEST_WORD},}}", lambda word: shortened(word[0]), shown)


def did_you_mean(word: str, known: Iterable[str], *, lead: str = "", otherwise: str = "") -> str:
    """`lead` and "did you mean NAME?" with the name in `known` closest to `word`; `otherwise` if no name is close."""
    near = get_close_matches(word, list(known), n=1)
    return f"{lead}did you mean {near[0]}?" if near else otherwise
