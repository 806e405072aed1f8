"""The gate runner: configuration in, result folder with a verdict out; fresh results are reused, stale ones say why."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.config import Config, Seed
from workbench.errors import BadInput, UnmetPrerequisite
from workbench.gates.stage import Stage, read_stage, stage_of
from workbench.paths import Profile
from workbench.schema import Criterion, Evidence, Outcome, Result, RunFolder, Status, Verdict, decide, list_runs


class GateConfig(Config):
    """Settings that every gate has."""

    profile: Profile = "mini"
    """Model and store that the gate runs on."""
    smoke: bool = False
    """A small run that shows the machinery works; its verdict is inconclusive at best."""
    seed: Seed = 0
    """Seed of every random choice."""


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Results of a gate's run, from which the runner draws the verdict."""

    criteria: Sequence[Criterion]
    """Every clause with its figures."""
    summary: str
    """One sentence for people."""
    conditions: Sequence[str] = ()
    """Conditions of the verdict, a sentence each."""
    limits: Mapping[str, str] = field(default_factory=dict)
    """By clause code: why this run can't pass in full, e.g. too few requests. With one, a pass becomes inconclusive."""
    enables: Sequence[str] = ()
    """Decisions that a pass allows."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    per_token: Mapping[str, Sequence[float]] = field(default_factory=dict)
    tables: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Gate:
    """One gate: its question, configuration and run, for the runner."""

    name: str
    """Name of the gate's package, e.g. `b_locality`; its first letter is the gate's letter."""
    question: str
    """The question that the verdict answers, in one sentence."""
    evidence: Evidence | Callable[[Any], Evidence]
    """Evidence of the verdict, or a function of the configuration that returns it."""
    config: type[GateConfig]
    """Class of the gate's configuration."""
    smoke_settings: Mapping[str, Any]
    """Settings of a smoke run that differ from the defaults."""
    module: str
    """Dotted name of the module with `run`; a change in its sources or in any that they import makes results stale."""
    shown: Mapping[str, str]
    """Tables that the command prints, by name, with their titles; each title ends in its evidence."""
    prepare: Callable[[Any], None]
    """Makes missing inputs, e.g. packs the bundled model; called before `inputs`."""
    inputs: Callable[[Any], Mapping[str, str]]
    """Digests of the inputs that a run at a configuration would read, by name."""
    run: Callable[[Any, RunFolder], Findings]
    """Runs the gate at a configuration; files go into the folder's artifacts."""
    needs: tuple[str, ...] = ()
    """Names of the gates that must have passed before."""

    @property
    def letter(self) -> str:
        """Letter of the gate, e.g. `B`."""
        return self.name[0].upper()

    @property
    def kind(self) -> str:
        """Kind of the gate's result folders, e.g. `gate_b`."""
        return f"gate_{self.name[0]}"

    def evidence_of(self, config: GateConfig) -> Evidence:
        """Evidence of the verdict of a run at `config`."""
        return self.evidence if isinstance(self.evidence, Evidence) else self.evidence(config)

    def configure(self, *, profile: str = "mini", smoke: bool = False, settings: Sequence[str] = ()) -> GateConfig:
        """The gate's configuration: defaults, then settings of a smoke run, then `key=value` settings."""
        values = {"profile": profile, "smoke": smoke, **(self.smoke_settings if smoke else {})}
        return self.config.build(values, settings)


@dataclass(frozen=True, kw_only=True)
class State:
    """State of a gate's latest run, for the gate table."""

    word: str
    """missing | running | failed | interrupted | abandoned | fresh | stale."""
    reasons: tuple[str, ...] = ()
    """Reasons why the run is stale or failed."""
    folder: RunFolder | None = None
    """Folder of the gate's latest run."""
    result: Result | None = None
    """Result of that run."""

    @property
    def verdict(self) -> Verdict | None:
        """Verdict of that run."""
        return self.result.verdict if self.result else None


def run_gate(
    gate: Gate,
    config: GateConfig,
    *,
    root: Path,
    anyway: bool = False,
    again: bool = False,
    note: Callable[[str], None] = lambda _: None,
) -> RunFolder:
    """The folder of a finished run at this configuration: a fresh one from `root`, else a new one.

    Args:
        gate: the gate.
        config: its settings, thresholds among them; they are on disk before anything is read.
        root: folder of all results.
        anyway: run although a predecessor has not passed; the verdict then says what it is conditional on.
        again: run although a fresh result exists.
        note: gets one line about what is done and why.

    Raises UnmetPrerequisite naming the first predecessor that has not passed.
    """
    unmet = unmet_needs(gate, config.profile, root)
    if unmet and not anyway:
        name, word = next(iter(unmet.items()))
        raise UnmetPrerequisite(
            f"gate {gate.letter} needs gate {name}, which is {word}: run `workbench gate {name}` first, or add --anyway "
            "(the verdict then says so)"
        )
    gate.prepare(config)
    stage = gate_stage(gate, config, unmet)
    fresh, reasons = find_result(root, gate.kind, stage)
    if fresh and not again:
        note(f"gate {gate.letter}: nothing changed since {fresh.path}, reusing it (--again runs it anew)")
        return fresh
    note(f"gate {gate.letter}: running" + (f", because {'; '.join(reasons[:3])}" if reasons else ""))
    return _run(gate, config, stage, root, [f"conditional on gate {name} ({word})" for name, word in unmet.items()])


def _run(gate: Gate, config: GateConfig, stage: Stage, root: Path, conditions: Sequence[str]) -> RunFolder:
    tags = {"gate": gate.letter, "stage": stage.key[:12], "smoke": str(config.smoke).lower()}
    evidence = gate.evidence_of(config)
    with RunFolder.create(root, gate.kind, config, profile=config.profile, evidence=evidence, tags=tags) as folder:
        stage.write(folder)
        findings = gate.run(config, folder)
        folder.finish(
            metrics=findings.metrics,
            per_token=findings.per_token,
            tables=findings.tables,
            verdict=conclude(findings, conditions),
            tags=findings.tags,
        )
    return folder


def conclude(findings: Findings, conditions: Sequence[str] = ()) -> Verdict:
    """The verdict of the criteria; a pass with limits becomes inconclusive, and its codes are those of the limits."""
    verdict = decide(
        findings.criteria,
        conditions=[*conditions, *findings.conditions, *findings.limits.values()],
        enables=findings.enables,
        summary=findings.summary,
    )
    if not findings.limits or verdict.outcome is not Outcome.PASS:
        return verdict
    return verdict.model_copy(update={"outcome": Outcome.INCONCLUSIVE, "codes": tuple(findings.limits), "enables": ()})


def gate_stage(gate: Gate, config: GateConfig, unmet: Mapping[str, str]) -> Stage:
    """The stage of a run of `gate` now; predecessors that have not passed are among its inputs."""
    needed = {f"verdict of gate {name}": unmet.get(name, Outcome.PASS.value) for name in gate.needs}
    return stage_of(config, {**gate.inputs(config), **needed}, gate.module)


def find_result(root: Path, kind: str, stage: Stage) -> tuple[RunFolder | None, list[str]]:
    """The newest finished run that is fresh for `stage`, or None with the reasons why the newest finished run is stale."""
    finished = [folder for folder in list_runs(root, kind) if folder.status is Status.FINISHED]
    reasons = [stage.differences(older) if (older := read_stage(folder)) else ["it has no stage"] for folder in finished]
    fresh = [folder for folder, why in zip(finished, reasons, strict=True) if not why]
    return (fresh[-1], []) if fresh else (None, reasons[-1] if reasons else [])


def unmet_needs(gate: Gate, profile: str, root: Path) -> dict[str, str]:
    """Predecessors that have not passed on this profile, by name, with their outcome or `missing`."""
    words = {}
    for name in gate.needs:
        results = [folder.result for folder in list_runs(root, f"gate_{name[0]}") if folder.status is Status.FINISHED]
        verdicts = [result.verdict for result in results if result and result.profile == profile and result.verdict]
        word = verdicts[-1].outcome.value if verdicts else "missing"
        if word != Outcome.PASS.value:
            words[name] = word
    return words


def gate_state(gate: Gate, profile: str, root: Path) -> State:
    """State of the gate's newest full run, else of its newest smoke run, checked against present sources and inputs."""
    runs = [folder for folder in list_runs(root, gate.kind) if folder.environment["profile"] == profile]
    full = [folder for folder in runs if folder.environment["tags"].get("smoke") != "true"]
    if not runs:
        return State(word="missing")
    folder = (full or runs)[-1]
    status, result = folder.status, folder.result
    if status is not Status.FINISHED or result is None:
        return State(word=status.value, reasons=((result.error or "",) if result else ()), folder=folder, result=result)
    reasons = _stale_reasons(gate, folder, unmet_needs(gate, profile, root))
    return State(word="stale" if reasons else "fresh", reasons=tuple(reasons), folder=folder, result=result)


def _stale_reasons(gate: Gate, folder: RunFolder, unmet: Mapping[str, str]) -> list[str]:
    older = read_stage(folder)
    if older is None:
        return ["it has no stage"]
    try:
        config = gate.config.from_toml(folder.path / "config.toml")
        return gate_stage(gate, config, unmet).differences(older)
    except BadInput as error:
        return [str(error)]


def age_s(folder: RunFolder) -> float:
    """Seconds since the run started."""
    return time.time() - folder.environment["started_unix_s"]
