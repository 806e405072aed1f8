"""Odd values, the options and settings of every command that they are given to, and commands that stop before their work."""

import datetime
import importlib
import math
import shlex
from pathlib import Path
from typing import get_args

from tests.hostile.commands import app, line_of
from workbench.abba.records import AbbaConfig
from workbench.config import Config
from workbench.errors import UnmetPrerequisite
from workbench.experiments.generate import GenerateConfig
from workbench.experiments.modes import ModesConfig
from workbench.experiments.simulation import MissesConfig, RoutesConfig, TwinRunConfig
from workbench.experiments.sweep import SweepConfig
from workbench.experiments.trace import TraceConfig
from workbench.experiments.twin_validation import TwinValidationConfig
from workbench.gates import all_gates
from workbench.gates.notebooks import NotebookConfig
from workbench.schema import RunFolder
from workbench.schema.envelopes import Envelope
from workbench.simulate.planner import PlannedMachine
from workbench.simulate.stages import StageTimes

STOPPED = "stopped before the work"
DIGITS = 5000 * "9"

WORDS = ("nan", "inf", "-inf", "-1", "0", "1.9", "1e400", "true", "2026-01-01", "[1]", "0x10", "", "1\n2", "caf\udce9", DIGITS)
"""Odd values of an option."""
NO_INTEGER = set(WORDS) - {"-1", "0"}
NO_NUMBER = NO_INTEGER - {"1.9"}

VALUES = (
    math.nan, math.inf, -math.inf, -1, 0, 1.9, 2.0, True, 10**400, datetime.date(2026, 1, 1), datetime.time(1), "1", "a\nb",
    "\x00", [], [1], [math.nan], [-1], [True], [1.9], [datetime.date(2026, 1, 1)], [[1]], {}, {"a": 1},
)  # fmt: skip
"""Odd values of a setting in a TOML file."""

BUILT = {
    AbbaConfig: {"base": {}},
    GenerateConfig: {},
    TraceConfig: {},
    ModesConfig: {},
    MissesConfig: {},
    RoutesConfig: {},
    TwinRunConfig: {},
    SweepConfig: {},
    TwinValidationConfig: {},
    NotebookConfig: {"name": "start"},
    PlannedMachine: {"name": "a", "device": "b", "budget_gb": 20, "ssd_gbps": [5, 6], "compute_ms": [45, 90]},
    Envelope: {
        "name": "a", "device": "b", "source": "c", "latency_us": 80, "stream_gbps": 3, "bandwidth_gbps": 6, "iops": 1e5,
    },
    StageTimes: {"source": "a", "pre_router_us": [1.5], "shared_us": [1.5], "experts_us": [1.5]},
    **{gate.config: {} for gate in all_gates()},
}  # fmt: skip
"""Configurations that commands build from files and settings, with values of their required fields."""

LINES = {
    "gate": "gate b_locality --smoke --anyway",
    "notebook": "notebook b_locality",
    "simulate sweep": "simulate sweep",
    "simulate validate": "simulate validate",
    "bench io": "bench io",
    "bench modes": "bench modes",
    "abba": "abba --base {base}",
    "slice": "slice --out {tmp}/slice",
    "plan": "plan --budget-gb 20 --ssd-gbps 5 6.5 --compute-ms 45 90",
}
"""Command lines where that of the registry shows its help or has an option that the command lacks."""

WORK = (
    "workbench.stores.pack.pack",
    "workbench.stores.slicing.make_slice",
    "workbench.gates.a_storage.file.probe_file",
    "workbench.simulate.marginals.marginals_beside_published",
    "workbench.simulate.machines.session_keys",
    "workbench.doctor.unproven",
    "workbench.gates.base.gate_stage",
    "workbench.simulate.importer.import_routes",
    "workbench.experiments.simulation.load_routes",
    "workbench.abba.plans.known_bandwidth",
    "workbench.tracking.track",
    "workbench.tracking.rebuild",
    "workbench.cli.doctor.examine",
)
"""Functions that begin the work of the commands that write no result folder."""


def stop_before_work(monkeypatch):
    """Each command ends with status 3 where its work would begin."""

    def stop(*_, **__):
        raise UnmetPrerequisite(STOPPED)

    monkeypatch.setattr(RunFolder, "create", stop)
    for place in WORK:
        module, _, name = place.rpartition(".")
        monkeypatch.setattr(importlib.import_module(module), name, stop)


def words_of(command, **values):
    """Words of a command line of `command` that stops at its work."""
    return shlex.split(LINES[command].format(**values) if command in LINES else line_of(command, **values))


def options_of(command):
    """Options and arguments of a command that take a value: name and type."""
    found = app
    for word in command.split():
        found = found[word]
    for argument in found.assemble_argument_collection():
        kinds = {argument.hint, *get_args(argument.hint)}
        if bool not in kinds:
            yield argument.name, kinds | {inner for kind in kinds for inner in get_args(kind)}


def with_option(words, option, value):
    """The words of a command line, where an option has `value` and no other one."""
    kept, skipping = [], False
    for word in words:
        if word.startswith("--"):
            skipping = word == option
        if not skipping:
            kept.append(word)
    return [*kept, f"{option}={value}"]


def tree(folder):
    """Every path below a folder."""
    return sorted(Path(folder).rglob("*"))


def settings_of(kind, path=()):
    """Every setting of a configuration: its path."""
    for name, field in kind.model_fields.items():
        yield (*path, name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, Config):
            yield from settings_of(field.annotation, (*path, name))
