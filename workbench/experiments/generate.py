"""A generate run: prompts in, text and a result folder out, with the metrics beside their bound."""

import hashlib
import math
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import Field
from tokenizers import Tokenizer

from workbench.analysis.classes import read_tables
from workbench.analysis.detectors import run_detectors
from workbench.analysis.run_metrics import run_metrics, token_series
from workbench.analysis.token_bound import token_bound
from workbench.config import Config, Figure
from workbench.errors import BadInput
from workbench.experiments.attribution import attribute
from workbench.experiments.bandwidth import Bandwidth, known_bandwidth
from workbench.experiments.disk_rates import known_rates
from workbench.experiments.routes import RouteRecorder, write_model_routes
from workbench.experiments.text import TextSink, TurnText, encode, load_tokenizer, stop_ids
from workbench.files import write_atomically
from workbench.hardware import memory_pressure, peak_rss_bytes, swap_out_bytes
from workbench.loading.warming import Warming
from workbench.paths import Profile, bundled_model, runs_folder, store_folder
from workbench.plugins import short_name
from workbench.readers import PacedReader
from workbench.runtime.config import RuntimeConfig
from workbench.runtime.crossover import UNKNOWN_DISK, DiskRates
from workbench.runtime.engine import Engine
from workbench.runtime.resident_engine import ResidentEngine
from workbench.runtime.route_log import RouteSink
from workbench.runtime.sampling import Sampler, SamplingConfig
from workbench.runtime.session import Session, generate
from workbench.runtime.streamed import StreamedEngine
from workbench.scheduling.ticket import Scope
from workbench.schema import EventLog, Evidence, RunFolder
from workbench.schema.events import TEXT_SHOWN
from workbench.units import NS_PER_MS, NS_PER_S


class GenerateConfig(Config):
    """One request of one or more turns, which share the sequence's state and the cache."""

    profile: Profile = "mini"
    """mini, slice or flash-next."""
    turns: tuple[str, ...] = ()
    """Prompts, one per turn; the sequence's state and the cache are kept between turns."""
    max_tokens: int = Field(128, ge=1)
    """Tokens to generate in each turn."""
    resident: bool = False
    """No streaming: the whole checkpoint in memory (profile mini), or whole layers read one at a time (profile slice)."""
    stop_at_eos: bool = True
    """End a turn after the end-of-text token."""
    tile: int = Field(256, ge=1)
    """Prompt tokens per prefill pass."""
    idle_s: float = Field(0.0, ge=0, le=1e6)
    """Idle time between two turns (a tool runs, a person reads), seconds."""
    hot_set: int = Field(0, ge=0)
    """Most records prefetched for the sequence in the idle time, its most and latest used first; 0: none."""
    routes: bool = False
    """Write the native router's choices to artifacts/routes.parquet, from which an oracle predictor knows the future."""
    beyond_positions: bool = False
    """Let the sequence grow longer than the positions that the model was made for."""
    warm_up_tokens: int = Field(0, ge=0)
    """Tokens decoded before the run, in a sequence that is discarded with its events; the cache keeps the records they read."""
    attribution_tokens: int = Field(8, ge=0)
    """Tokens decoded after the run to time each stage; 0: no stage times, and hence no bound."""
    bandwidth_gbps: Figure | None = None
    """Disk bandwidth for the bound, decimal GB/s; default: from the disk's envelope, else from a probe before the run."""
    probe_s: float = Field(2.0, gt=0)
    """Seconds of the probe."""
    runtime: RuntimeConfig = RuntimeConfig()
    """Cache and reads of experts and n-gram rows."""
    sampling: SamplingConfig = SamplingConfig()
    """Sampling of tokens."""

    @property
    def evidence(self) -> Evidence:
        """Kind of evidence of the run's figures: emulated when reads are paced by an envelope, else physical."""
        return Evidence.EMULATED if self.runtime.envelope and not self.resident else Evidence.PHYSICAL


@dataclass(frozen=True, kw_only=True)
class Generated:
    """Result of a run: its folder, and the text of each turn."""

    folder: RunFolder
    texts: tuple[str, ...]


def run_generate(config: GenerateConfig, *, on_text: TextSink | None = None, root: Path | None = None) -> Generated:
    """Runs one request and writes its result folder. Raises BadInput on settings that can't be used."""
    if not config.turns or not all(config.turns):
        raise BadInput("nothing to generate from: give a prompt")
    config.runtime.check_envelope()
    tags = {"arm": "resident" if config.resident else f"streamed-{short_name(config.runtime.policy)}"}
    root = root or runs_folder()
    folder = RunFolder.create(root, "generate", config, profile=config.profile, evidence=config.evidence, tags=tags)
    with folder, ExitStack() as stack:
        swapped = swap_out_bytes()
        bandwidth = _bandwidth(config)
        engine = open_engine(config, folder.events, _rates(config, bandwidth))
        stack.enter_context(engine)
        recorder = RouteRecorder(family=config.profile, split="held_out") if config.routes else None
        session, texts = _run_turns(config, engine, on_text, recorder)
        digests = {"state_digest": session.state.digest(), "routing_digest": session.routing_digest}
        metrics = _memory_metrics(engine, swapped)
        if isinstance(engine, StreamedEngine):
            attribute(engine, session, config.attribution_tokens)
            engine.close()
            metrics |= _checksum_metrics(engine)
            digests |= _emulation_tags(engine)
        if recorder is not None:
            write_model_routes(recorder.frame(), folder, engine.model.geometry)
        events = folder.events.scan()
        metrics |= run_metrics(events)
        if bandwidth is not None:
            metrics |= token_bound(events, bandwidth.bytes_per_s, engine.model.geometry.num_experts_per_tok)
            digests |= {"bandwidth_bytes_per_s": f"{bandwidth.bytes_per_s:.0f}", "bandwidth_source": bandwidth.source}
        digests["output_digest"] = _write_text(folder, texts)
        known = bandwidth.bytes_per_s if bandwidth else math.inf
        findings = [finding.row() for finding in run_detectors(events, metrics, bandwidth_bytes_per_s=known)]
        tags = digests | engine.identity
        folder.finish(
            metrics=metrics, per_token=token_series(events), tags=tags, tables={"findings": findings} | read_tables(events)
        )
    return Generated(folder=folder, texts=texts)


def _write_text(folder: RunFolder, texts: tuple[str, ...]) -> str:
    """Writes the turns' texts and returns the SHA-256 of the file."""
    text = "\n\n".join(texts).encode()
    write_atomically(folder.artifacts / "text.md", text)
    return hashlib.sha256(text).hexdigest()


def open_engine(config: GenerateConfig, log: EventLog, rates: DiskRates = UNKNOWN_DISK) -> ResidentEngine | StreamedEngine:
    """The engine of a configuration, a context manager. `rates`: disk rates for the choice of prefill mode.

    Raises as the engines do.
    """
    if not config.resident:
        return StreamedEngine(store_folder(config.profile), config.runtime, log, rates=rates)
    return ResidentEngine(bundled_model() if config.profile == "mini" else store_folder(config.profile), log)


def _bandwidth(config: GenerateConfig) -> Bandwidth | None:
    if config.resident:
        return None
    return known_bandwidth(config.bandwidth_gbps, config.profile, config.runtime, config.probe_s)


def _rates(config: GenerateConfig, bandwidth: Bandwidth | None) -> DiskRates:
    """Disk rates for the choice of prefill mode; `UNKNOWN_DISK` when nothing is streamed or the mode is fixed."""
    if bandwidth is None or config.runtime.prefill != "auto":
        return UNKNOWN_DISK
    if config.bandwidth_gbps is not None:
        given = bandwidth.bytes_per_s
        return DiskRates(sparse_bytes_per_s=given, sequential_bytes_per_s=given, source=bandwidth.source)
    return known_rates(config.profile, config.runtime, bandwidth, config.probe_s)


def _run_turns(
    config: GenerateConfig, engine: Engine, on_text: TextSink | None, recorder: RouteRecorder | None
) -> tuple[Session, tuple[str, ...]]:
    tokenizer = load_tokenizer(config.profile)
    if config.warm_up_tokens:
        _warm_up(config, engine, tokenizer)
    warming = _warming(config, engine)
    sink = _sink(engine.model.geometry.num_experts, warming, recorder)
    session = Session(engine, tile=config.tile, route_sink=sink, beyond_positions=config.beyond_positions)
    sampler = Sampler(config.sampling)
    texts: list[str] = []
    for turn in config.turns:
        if texts:
            _stand_idle(config, session, warming)
        texts.append(_run_turn(config, session, tokenizer, sampler, turn, on_text))
    return session, tuple(texts)


def _warming(config: GenerateConfig, engine: Engine) -> Warming | None:
    if not config.hot_set or not isinstance(engine, StreamedEngine):
        return None
    return Warming(engine.transfer, most=config.hot_set)


def _sink(num_experts: int, warming: Warming | None, recorder: RouteRecorder | None) -> RouteSink | None:
    """A sink that passes committed routes to the hot set and to the recorder; None when there is neither."""
    if warming is None and recorder is None:
        return None

    def take(scope: Scope, layer: int, tokens: np.ndarray, ids: np.ndarray, weights: np.ndarray) -> None:
        if warming is not None:
            warming.use((np.unique(ids) + layer * num_experts).tolist())
        if recorder is not None:
            recorder.record(scope, layer, tokens, ids, weights)

    return take


def _stand_idle(config: GenerateConfig, session: Session, warming: Warming | None) -> None:
    if warming is None:
        time.sleep(config.idle_s)
    else:
        warming.stand_idle(session.request, round(config.idle_s * NS_PER_S))


def _warm_up(config: GenerateConfig, engine: Engine, tokenizer: Tokenizer) -> None:
    session = Session(engine, request=-1, tile=config.tile, beyond_positions=config.beyond_positions)
    ids = encode(tokenizer, config.turns[0], engine.model.geometry.vocab_size)
    for _ in generate(session, ids, config.warm_up_tokens, Sampler(config.sampling)):
        pass
    engine.log.clear()


def _run_turn(
    config: GenerateConfig, session: Session, tokenizer: Tokenizer, sampler: Sampler, text: str, on_text: TextSink | None
) -> str:
    geometry, log = session.engine.model.geometry, session.engine.log
    stop = stop_ids(config.profile, geometry) if config.stop_at_eos else frozenset()
    ids = encode(tokenizer, text, geometry.vocab_size)
    shown = TurnText(tokenizer, on_text)
    for record in generate(session, ids, config.max_tokens, sampler, stop=stop):
        start_ns = time.monotonic_ns()
        shown.add(record.token_id)
        if on_text is not None:
            end_ns = time.monotonic_ns()
            log.add(end_ns, "mark", name=TEXT_SHOWN, duration_ns=end_ns - start_ns)
    return shown.end()


def _memory_metrics(engine: Engine, swapped_before: int) -> dict[str, float]:
    return {
        "e2e/peak_rss_bytes": peak_rss_bytes(),
        "e2e/working_set_bytes": engine.resident_bytes + engine.cache_bytes,
        "e2e/swap_delta_bytes": swap_out_bytes() - swapped_before,
        "e2e/memory_pressure": memory_pressure(),
    }


def _checksum_metrics(engine: StreamedEngine) -> dict[str, float]:
    metrics = {f"storage/{store}_checksum_ms": ns / NS_PER_MS for store, ns in engine.transfer.check_ns.items()}
    return metrics | {"e2e/resident_check_ms": engine.resident_check_ms}


def _emulation_tags(engine: StreamedEngine) -> dict[str, str]:
    """Tags of a paced run: share of reads for which this machine's disk was slower than the emulated disk."""
    if not isinstance(engine.reader, PacedReader):
        return {}
    return {"overdue_share": f"{engine.reader.num_overdue / max(1, engine.reader.num_reads):.4f}"}
