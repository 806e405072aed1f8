"""Runs command lines as the program would, in this process."""

import shlex
import traceback

import pytest

from tests.hostile.commands import Ended
from workbench.cli import run as run_words
from workbench.cli import track as cli_track


@pytest.fixture
def end(capsys, monkeypatch):
    """Runs a command line as the program would, and tells how it ended. Servers are not started."""
    monkeypatch.setattr(cli_track, "_become", lambda command, environment: None)

    def run(line):
        capsys.readouterr()
        try:
            status = run_words(shlex.split(line))
        except SystemExit as error:
            status = error.code
        except BaseException:
            said = capsys.readouterr()
            return Ended(None, said.out, said.err + traceback.format_exc())
        said = capsys.readouterr()
        return Ended(status, said.out, said.err)

    return run
