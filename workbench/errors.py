"""Errors that people cause and can mend: one clear line each (what, where, what to do), an exit status, no traceback."""


class BadInput(ValueError):
    """A file, argument or setting that can't be used. Exit status 2."""

    exit_code = 2


class UnmetPrerequisite(RuntimeError):
    """Something that must exist first, with the command that makes it. Exit status 3."""

    exit_code = 3
