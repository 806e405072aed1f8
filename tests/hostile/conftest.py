"""Runs command lines as the program would, in this process."""

import shlex
import traceback

import numpy as np
import pytest

from tests.hostile.commands import Ended
from workbench.cli import run as run_words
from workbench.cli import track as cli_track


@pytest.fixture
def end(capsys, monkeypatch):
    """Runs a command line, or its words, as the program would, and tells how it ended. Servers are not started."""
    monkeypatch.setattr(cli_track, "_become", lambda command, environment: None)

    def run(line):
        capsys.readouterr()
        try:
            status = run_words(shlex.split(line) if isinstance(line, str) else [str(word) for word in line])
        except SystemExit as error:
            status = error.code
        except BaseException:
            said = capsys.readouterr()
            return Ended(None, said.out, said.err + traceback.format_exc())
        said = capsys.readouterr()
        return Ended(status, said.out, said.err)

    return run


@pytest.fixture
def routes_small():
    """Routes of 2 requests, 3 tokens, 2 layers, top-2 of 4 experts."""
    return np.random.default_rng(0).permuted(np.tile(np.arange(4), (2, 3, 2, 1)), axis=-1)[..., :2]


@pytest.fixture(scope="session")
def sound_run(tmp_path_factory, packed):
    """A finished run, made once."""
    root = tmp_path_factory.mktemp("sound")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKBENCH_STORE", str(packed))
        patch.setenv("WORKBENCH_RUNS", str(root))
        from workbench.experiments.generate import GenerateConfig, run_generate

        values = {"turns": ["ab"], "max_tokens": 2, "bandwidth_gbps": 1, "runtime": {"cache_bytes": 8 << 20}}
        return run_generate(GenerateConfig.build(values)).folder.path
