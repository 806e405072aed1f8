import json

import pytest
from cyclopts import App

from workbench.cli import timeline
from workbench.config import Config
from workbench.errors import BadInput
from workbench.schema import Evidence, RunFolder

MS = 1_000_000


class Plan(Config):
    """Of a planted run."""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Two tokens; the second waits 3 of its 10 ms for expert 5 of layer 1."""
    monkeypatch.setenv("WORKBENCH_RUNS", str(tmp_path))
    folder = RunFolder.create(tmp_path, "generate", Plan(), profile="mini", evidence=Evidence.EMULATED)
    top = {"request": 0, "phase": "decode"}
    for end in (10, 20):
        folder.events.add(end * MS, "token", **top, duration_ns=9 * MS, committed_tokens=1)
    folder.events.add(12 * MS, "wait", **top, layer=1, store="expert", duration_ns=3 * MS, guarded=1, consumed=1)
    times = {"submit_ns": 11 * MS, "ready_ns": 14 * MS, "seen_ns": 15 * MS, "outcome": "used_late"}
    folder.events.add(11 * MS, "ticket", **top, layer=1, store="expert", identity=133, intent="exact", **times)
    folder.finish()
    return folder


@pytest.fixture
def command():
    app = App(name="workbench", result_action="return_value")
    timeline.register(app)
    return lambda *words: app(["timeline", *words], exit_on_error=False, print_error=False)


def test_it_writes_a_trace_and_a_figure_and_says_what_the_waits_were_for(run, command, capsys):
    command(run.path.name, "--token", "2")
    told = capsys.readouterr().out
    assert "Exposed waits of token 2, 10.0 ms, by layer and class (emulated)" in told
    events = json.loads((run.artifacts / "timeline.json").read_text())["traceEvents"]
    assert "layer 1, expert 5" in {event["name"] for event in events}
    assert (run.artifacts / "timeline.png").read_bytes().startswith(b"\x89PNG")


def test_json_names_the_files_and_their_evidence(run, command, capsys, tmp_path):
    command(f"generate/{run.path.name}", "--token", "2", "--out", str(tmp_path / "there" / "t.json"), "--json")
    told = json.loads(capsys.readouterr().out)
    assert (told["evidence"], told["token"], told["token_ms"]) == ("emulated", 2, 10.0)
    assert told["waits"] == [{"layer": 1, "store": "expert", "waits": 1.0, "wait_ms": 3.0, "guarded": 1.0, "share": 1.0}]
    assert told["mean_waits"][0]["wait_ms"] == 1.5
    assert told["trace"] == str(tmp_path / "there" / "t.json")
    assert (tmp_path / "there" / "t.png").exists()


def test_a_token_that_was_not_decoded_is_refused(run, command):
    with pytest.raises(BadInput, match="no token 3: the run has decoded tokens 1 to 2"):
        command(run.path.name, "--token", "3")
