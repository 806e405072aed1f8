"""A long run's memory is that of a short one, and a sequence ends where the model's positions end."""

import os
import resource
import signal
import subprocess
import sys

import polars as pl
import pytest

from workbench.errors import BadInput
from workbench.paths import bundled_model
from workbench.runtime.resident_engine import ResidentEngine
from workbench.runtime.sampling import Sampler, SamplingConfig
from workbench.runtime.session import Session, generate
from workbench.schema import EventLog, RunFolder, Status, list_runs, read_events
from workbench.schema import events as events_module
from workbench.units import MIB

CACHE_BYTES = 8 * MIB
SPARE_BYTES = 600 * MIB
"""What a run may take besides the trunk and the cache."""


def test_a_sequence_past_the_last_position_is_refused_before_it_is_computed():
    with ResidentEngine(bundled_model(), EventLog()) as engine:
        most = engine.model.geometry.max_position_embeddings
        session = Session(engine)
        with pytest.raises(BadInput, match=f"would have {most + 1} tokens .* beyond_positions=true"):
            next(generate(session, [1, 2], most - 1, Sampler(SamplingConfig())))
        assert session.state.position == 0
        allowed = Session(engine, request=1, beyond_positions=True)
        assert next(generate(allowed, [1, 2], most - 1, Sampler(SamplingConfig()))).position == 2


def test_events_of_a_run_roll_between_passes(tmp_path, monkeypatch):
    monkeypatch.setattr(events_module, "CHUNK_EVENTS", 40)
    whole, log = EventLog(), EventLog(tmp_path / "events")
    for each in (whole, log):
        with ResidentEngine(bundled_model(), each) as engine:
            session = Session(engine)
            session.prefill([1, 2, 3])
            for token in range(20):
                session.decode(token)
    assert len(list((tmp_path / "events").iterdir())) >= 3
    wanted, found = whole.frame(), log.frame().filter(pl.col("name").ne_missing(events_module.LOG_WRITTEN))
    for column in ("kind", "phase", "position", "layer", "identity", "committed_tokens"):
        assert found[column].equals(wanted[column]), column


def trace(runs, packed, *, tokens, requests):
    """A trace run in a process of its own: its folder, and the peak of its memory in bytes."""
    settings = [f"runtime.cache_bytes={CACHE_BYTES}", "prompt_tokens=8"]
    words = ["trace", "--requests", str(requests), "--tokens", str(tokens), *(f"--set={each}" for each in settings)]
    environment = os.environ | {"WORKBENCH_RUNS": str(runs), "WORKBENCH_STORE": str(packed), "WORKBENCH_TRACKING": "off"}
    with subprocess.Popen([sys.executable, "-m", "workbench.cli", *words], env=environment) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    unit = 1 if sys.platform == "darwin" else resource.getpagesize() // 4
    (folder,) = list_runs(runs, "trace")
    return RunFolder(folder.path), usage.ru_maxrss * unit


@pytest.mark.soak
def test_twenty_thousand_tokens_take_the_memory_of_the_budget(tmp_path, packed):
    folder, peak_bytes = trace(tmp_path / "long", packed, tokens=4000, requests=5)
    events = read_events(folder.path / "events.parquet")
    assert events.filter(kind="token", phase="decode").height == 20_000
    assert events.filter(name=events_module.LOG_WRITTEN).height >= 20
    trunk_bytes = (packed / "resident.safetensors").stat().st_size
    print(f"peak {peak_bytes / MIB:.0f} MiB, trunk {trunk_bytes / MIB:.0f} MiB")
    assert peak_bytes <= trunk_bytes + CACHE_BYTES + SPARE_BYTES


KILLED = """
import os, signal, sys
from workbench.cli import app, commands, run
from workbench.schema import events
events.CHUNK_EVENTS = 200
write = events.EventLog._write_chunk
def write_and_die(log, folder):
    write(log, folder)
    if len(log._written) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
events.EventLog._write_chunk = write_and_die
commands.register(app)
run(sys.argv[1:])
"""
"""A command whose process is killed right behind its third chunk of events."""


def test_a_killed_run_keeps_its_events_up_to_the_last_chunk(tmp_path, packed):
    words = ["generate", "--prompt", "ab", "--max-tokens", "99", "--bandwidth-gbps", "1", "--cache-bytes", "8MiB"]
    environment = os.environ | {"WORKBENCH_RUNS": str(tmp_path), "WORKBENCH_STORE": str(packed), "WORKBENCH_TRACKING": "off"}
    killed = subprocess.run([sys.executable, "-c", KILLED, *words], env=environment, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    (folder,) = list_runs(tmp_path)
    assert folder.status is Status.ABANDONED
    events = read_events(folder.path / "events.parquet")
    assert events.height >= 600
    assert events.filter(name=events_module.LOG_WRITTEN).height == 2
    assert events.filter(kind="token")["position"].diff().drop_nulls().unique().to_list() == [1]
