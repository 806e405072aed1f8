"""Validates the twin: compares live runs, each interleaved with stage timing, with the twin's runs of the same routes.

The twin gets routes, settings, an envelope and stage times, and never the events of a live run.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from pydantic import Field

from workbench.analysis.twin_errors import ARM, Decoded, decoded, error_row, error_table, judge_twin
from workbench.config import Config, Seed, Share
from workbench.experiments.disk_probe import probe_envelope
from workbench.experiments.live_twin import twin_inputs
from workbench.experiments.stage_timing import Calibration, TimingPlan, compute_times, fit_read_cost, take_turns, timing_steps
from workbench.experiments.trace import TraceConfig, trace_steps
from workbench.paths import Profile, runs_folder, store_folder
from workbench.plots.style import save_figure
from workbench.plots.twin import error_figure
from workbench.policies import PolicyName
from workbench.progress import progress
from workbench.runtime.config import RuntimeConfig
from workbench.runtime.sampling import SamplingConfig
from workbench.runtime.store_cache import cache_limits
from workbench.scheduling.ticket import WaveSize
from workbench.schema import Evidence, RunFolder, read_events
from workbench.schema.envelopes import Envelope, in_proportion, load_envelope
from workbench.schema.parquet import write_parquet
from workbench.stores import open_store

_FAMILIES = ("python", "rust", "documentation", "prose", "lists_tables", "question_answer")
_TIMED_FAMILY = "prose"
_CONDITIONS = (
    "prompts ran token by token: prefill modes are not imitated",
    "stage times and costs of reads were measured in runs of another text, interleaved with the live runs token by token",
)


class LiveCase(Config):
    """One live run to imitate."""

    family: str
    """Prompt family; its first held-out prompts are used."""
    cache_share: float = Field(gt=0, le=1)
    """Slots as a share of all records."""
    policy: PolicyName
    """Eviction policy."""
    wave: WaveSize
    """As `runtime.wave`."""
    envelope: str = ""
    """Name of the emulated disk; empty: this disk at its own speed."""


class TwinValidationConfig(Config):
    """The live runs of a validation, and the errors allowed to the twin."""

    profile: Profile = "mini"
    """Profile of the model and store."""
    envelopes: tuple[str, ...] = ("", "usb-10gbps")
    """Names of disks; an empty name is this disk at its own speed. All other disks are emulated over cached files."""
    slowed: tuple[str, ...] = ("m5-pro-2tb",)
    """Disks emulated with a record's read time as for Flash-Next's larger records; else compute would hide the reads."""
    cache_shares: tuple[Share, ...] = (0.15, 0.25, 0.4, 0.6)
    """Slots as shares of all records; there is one live run per disk and share."""
    policies: tuple[PolicyName, ...] = ("lfru", "lru", "s3-fifo", "arc")
    """Eviction policies, used in rotation."""
    waves: tuple[WaveSize, ...] = (4, "barrier", 1, "all")
    """Settings of `runtime.wave`, used in rotation."""
    requests: int = Field(2, ge=1)
    """Prompts per live run."""
    prompt_tokens: int = Field(32, ge=1)
    """Number of first tokens of each prompt that are used."""
    tokens: int = Field(48, ge=2)
    """Tokens decoded per prompt."""
    attribution_tokens: int = Field(16, ge=1)
    """Tokens decoded to time each stage."""
    probe_s: float = Field(0.4, gt=0)
    """Seconds of each of the four probes of this disk before a run at its own speed."""
    max_error: float = Field(0.20, gt=0)
    """Largest mean absolute error of hits, token time and exposed wait with which the twin is fit."""
    min_runs: int = Field(9, ge=1)
    """Fewest live runs for the verdict that the twin is fit."""
    seed: Seed = 0
    """Seed of the sampled tokens."""

    def cases(self, disks: Iterable[str]) -> Iterator[LiveCase]:
        """Every live run; policies and waves rotate, so that none of them always occurs with the same share or disk."""
        number = 0
        for disk, envelope in enumerate(disks):
            for place, share in enumerate(self.cache_shares):
                yield LiveCase(
                    family=_FAMILIES[number % len(_FAMILIES)],
                    cache_share=share,
                    policy=self.policies[(place + disk) % len(self.policies)],
                    wave=self.waves[(place + 2 * disk) % len(self.waves)],
                    envelope=envelope,
                )
                number += 1


def validate_twin(config: TwinValidationConfig, root: Path | None = None) -> RunFolder:
    """Runs every case live and in the twin; writes a folder with all runs, the table of errors, a figure and the verdict."""
    geometry = open_store(store_folder(config.profile)).geometry
    names = (*config.envelopes, *(in_proportion(name, geometry) for name in config.slowed))
    disks = {name: load_envelope(name) if name else None for name in names}
    cases = list(config.cases(disks))
    folder = RunFolder.create(
        root or runs_folder(), "simulate", config, profile=config.profile, evidence=Evidence.SIMULATED, tags={"arm": ARM}
    )
    with folder, progress("live runs", len(cases)) as advance:
        rows = []
        for number, case in enumerate(cases):
            rows.append(_run_case(config, case, number, folder, disks[case.envelope]))
            # an interrupted validation keeps the rows that it has
            write_parquet(pl.DataFrame(rows), folder.artifacts / "runs.parquet")
            advance(1)
        _finish(config, rows, folder)
    return folder


def _finish(config: TwinValidationConfig, rows: list[dict[str, Any]], folder: RunFolder) -> None:
    source = f"{config.profile}, {len(rows)} live runs"
    save_figure(error_figure(rows, config.max_error, source), folder.artifacts / "figures" / "errors.png")
    verdict = judge_twin(rows, max_error=config.max_error, min_runs=config.min_runs, conditions=_conditions(rows))
    folder.finish(verdict=verdict, tables={"errors": error_table(rows), "runs": rows})


def _conditions(rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    emulated = sum(row["live_evidence"] == Evidence.EMULATED for row in rows)
    if not emulated:
        return _CONDITIONS
    own = f"{emulated} of {len(rows)} live runs are emulated by the twin's own disk model: only the other runs test that model"
    return (*_CONDITIONS, own)


def _run_case(
    config: TwinValidationConfig, case: LiveCase, number: int, folder: RunFolder, emulated: Envelope | None
) -> dict[str, Any]:
    """Runs one case: live run and stage timing alternately, one token each, then the twin. Returns one row of the table."""
    store, root = store_folder(config.profile), folder.path / "runs"
    runtime = _runtime(case, store)
    envelope = emulated or probe_envelope(store, runtime, config.probe_s)
    recording = _recording(config, case, number, runtime)
    smallest = _smallest(recording, config, store)
    waiting = smallest.model_copy(update={"runtime": smallest.runtime.model_copy(update={"wave": "barrier"})})
    plan = TimingPlan(recording=smallest, attribution_tokens=config.attribution_tokens)
    steps = [trace_steps(each, root) for each in (waiting, smallest, recording)]
    timed, held, small, live = take_turns([timing_steps(plan, root), *steps])
    calibrations = (_calibration(*each, envelope, store) for each in ((held, waiting), (small, smallest)))
    stages = fit_read_cost(compute_times(timed), *calibrations)
    twin = decoded(twin_inputs(live, runtime, store).replay(stages, envelope))
    measured = {name: getattr(stages, name) for name in ("ask_us", "behind_us", "take_us", "wave_us")} | _disk_columns(envelope)
    return {
        **case.model_dump(mode="json"),
        "wave": str(case.wave),
        **error_row(_decoded(live), twin),
        **measured,
        "live_evidence": (Evidence.EMULATED if emulated else Evidence.PHYSICAL).value,
        "run": live.path.name,
    }


def _calibration(run: RunFolder, recording: TraceConfig, envelope: Envelope, store: Path) -> Calibration:
    inputs = twin_inputs(run, recording.runtime, store)
    return Calibration(live=_decoded(run), replay=lambda stages: decoded(inputs.replay(stages, envelope)))


def _decoded(folder: RunFolder) -> Decoded:
    return decoded(read_events(folder.path / "events.parquet"))


def _smallest(recording: TraceConfig, config: TwinValidationConfig, store: Path) -> TraceConfig:
    """The trace from which stage times are measured: another text, with the smallest cache."""
    least, _ = cache_limits(open_store(store))
    runtime = recording.runtime.model_copy(update={"cache_bytes": least.num_bytes})
    changes = {"requests": 1, "tokens": config.requests * config.tokens, "split": "train", "families": (_TIMED_FAMILY,)}
    return recording.model_copy(update={**changes, "runtime": runtime})


def _runtime(case: LiveCase, store: Path) -> RuntimeConfig:
    least, most = cache_limits(open_store(store))
    num_slots = max(least.num_slots, round(case.cache_share * most.num_slots))
    values = {
        "cache_bytes": num_slots * most.stride_bytes + 4 * least.num_pages * least.page_bytes,
        "policy": case.policy,
        "wave": case.wave,
        "prefill": "micro",
        "envelope": case.envelope,
        # reads of an emulated disk are buffered, so that the real disk does not delay them
        "uncached": not case.envelope,
    }
    return RuntimeConfig.build(values)


def _recording(config: TwinValidationConfig, case: LiveCase, number: int, runtime: RuntimeConfig) -> TraceConfig:
    return TraceConfig(
        profile=config.profile,
        requests=config.requests,
        tokens=config.tokens,
        families=(case.family,),
        tile=1,
        prompt_tokens=config.prompt_tokens,
        sampling=SamplingConfig(temperature=0.8, top_p=0.95, seed=config.seed + number * config.requests),
        runtime=runtime,
    )


def _disk_columns(envelope: Envelope) -> dict[str, float]:
    names = ("latency_us", "stream_gbps", "bandwidth_gbps", "iops")
    return {f"disk_{name}": getattr(envelope, name) for name in names}
