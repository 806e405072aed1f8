"""Identity runs: digests must be the same under settings that only move bytes, completion orders and faults.

Runs are short, on a modelled disk and a virtual clock: only digests are compared, no time is measured, no wait takes real time.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from workbench.experiments.generate import GenerateConfig, open_engine
from workbench.experiments.text import encode, load_tokenizer, model_folder
from workbench.gates.shared.comparisons import base_plan
from workbench.gates.shared.config import ComparisonConfig
from workbench.geometry import Geometry
from workbench.loading.transfer import RequestFailed
from workbench.model.state import LONGEST_BLOCK
from workbench.paths import store_folder
from workbench.progress import progress
from workbench.readers import Disk, Fault, FaultKind, FaultyReader, PreadReader, TimedReader, VirtualClock
from workbench.runtime.config import RuntimeConfig
from workbench.runtime.engine import Engine
from workbench.runtime.session import Session
from workbench.runtime.streamed import StreamedEngine
from workbench.schema import EventLog
from workbench.schema.envelopes import load_envelope
from workbench.units import NS_PER_MS

IDENTITY_SCHEMA: dict[str, Any] = {
    # setting | order | fault
    "kind": pl.String,
    "case": pl.String,
    "identical": pl.Boolean,
    # why the run failed; empty: the run ended well
    "error": pl.String,
}
"""Columns of the table of identity runs: one row per run."""
_TOKENS = 2
_BLOCK, _TILE = 2, LONGEST_BLOCK + 1
"""Prompt lengths, tokens: of a prompt that runs like decode, and of the shortest one that runs as a prefill tile."""
_DISK = "m4-pro-512gb"
_MOST_DELAY_NS = 3 * NS_PER_MS
WAVE_WIDTHS: tuple[Any, ...] = ("barrier", 1, 2, 4, "all")
"""Values of the runtime's setting `wave`."""
_CONTROLS = {"wave": "barrier", "ple": "late", "queue": "fifo", "prefill": "micro"}
"""Control settings of the runtime: the reference where the model is larger than memory."""

Digests = tuple[str, str]
FaultOf = Callable[[int], Fault | None]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run whose digests must equal the reference's."""

    kind: str
    words: str
    settings: dict[str, Any]
    fault_of: FaultOf
    num_prompt: int = _BLOCK


def check_identity(config: ComparisonConfig, changes: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Runs each of `changes`, settings of `RuntimeConfig`, then random orders and faults; rows in `IDENTITY_SCHEMA`."""
    plan = base_plan(config, "")["runtime"]
    text = encode(load_tokenizer(config.profile), config.prompt, Geometry.from_folder(model_folder(config.profile)).vocab_size)
    prompts = {length: (text * length)[:length] for length in (_BLOCK, _TILE)}
    wanted = {length: _reference(config, plan, prompt) for length, prompt in prompts.items()}
    num_reads = {split: _count_reads(config, plan | {"split_components": split}, prompts[_BLOCK]) for split in (False, True)}
    cases = [*_settings(changes), *_orders(config), *_faults(config, num_reads)]
    rows = []
    with progress("identity", len(cases)) as advance:
        for case in cases:
            found = _check(config, plan | case.settings, prompts[case.num_prompt], case.fault_of, wanted[case.num_prompt])
            rows.append((case.kind, case.words, *found))
            advance(1)
    return pl.DataFrame(rows, schema=IDENTITY_SCHEMA, orient="row")


def _count_reads(config: ComparisonConfig, settings: dict[str, Any], prompt: list[int]) -> int:
    reads: list[int] = []
    _run_streamed(config, settings, prompt, reads.append)
    return len(set(reads))


def _settings(changes: Sequence[Mapping[str, Any]]) -> Iterator[Case]:
    for change in changes:
        words = ", ".join(f"{name} {value}" for name, value in change.items())
        yield Case(kind="setting", words=words, settings=dict(change), fault_of=lambda _: None, num_prompt=_TILE)


def _orders(config: ComparisonConfig) -> Iterator[Case]:
    """Every read is delayed by a random time, so that reads complete in a random order; wave widths take turns."""
    for number in range(config.orders):
        delays = np.random.default_rng((config.seed, number)).integers(0, _MOST_DELAY_NS, size=1 << 16)
        settings = {"wave": WAVE_WIDTHS[number % len(WAVE_WIDTHS)], "split_components": number % 2 == 1}
        yield Case(kind="order", words=f"order {number}", settings=settings, fault_of=_late(delays))


def _late(delays_ns: np.ndarray) -> FaultOf:
    return lambda read: Fault(kind=FaultKind.DELAY, delay_ns=int(delays_ns[read % len(delays_ns)]))


def _faults(config: ComparisonConfig, num_reads: Mapping[bool, int]) -> Iterator[Case]:
    """In each case one read is faulty, at positions spread evenly over the run; kinds of faults take turns."""
    kinds = list(FaultKind)
    for number in range(config.faults):
        kind, split = kinds[number % len(kinds)], number // len(kinds) % 2 == 1
        position = number * num_reads[split] // config.faults
        settings = {"split_components": split}
        yield Case(kind="fault", words=f"{kind.value} at read {position}", settings=settings, fault_of=_once(position, kind))


def _once(position: int, kind: FaultKind) -> FaultOf:
    return lambda read: Fault(kind=kind, delay_ns=_MOST_DELAY_NS) if read == position else None


def _check(
    config: ComparisonConfig, settings: dict[str, Any], prompt: list[int], fault_of: FaultOf, wanted: Digests
) -> tuple[bool, str]:
    try:
        return _run_streamed(config, settings, prompt, fault_of) == wanted, ""
    except RequestFailed as error:
        return False, str(error)


def _reference(config: ComparisonConfig, plan: dict[str, Any], prompt: list[int]) -> Digests:
    """Digests of the resident path, or of the control settings where the model is larger than memory."""
    if config.profile == "flash-next":
        return _run_streamed(config, plan | _CONTROLS, prompt, lambda _: None)
    with open_engine(GenerateConfig(profile=config.profile, resident=True), EventLog()) as engine:
        return _decode(engine, prompt)


def _run_streamed(config: ComparisonConfig, settings: dict[str, Any], prompt: list[int], fault_of: FaultOf) -> Digests:
    clock = VirtualClock()
    disk = Disk(load_envelope(_DISK))
    reader = FaultyReader(TimedReader(PreadReader(), disk, clock), fault_of, clock)
    runtime = RuntimeConfig.build(settings)
    with StreamedEngine(store_folder(config.profile), runtime, EventLog(), reader=reader, clock=clock) as engine:
        try:
            return _decode(engine, prompt)
        finally:
            # a read that hangs would keep the engine from closing
            reader.thaw()


def _decode(engine: Engine, prompt: list[int]) -> Digests:
    """State and routing digests after a prompt and a few greedy tokens."""
    session = Session(engine)
    logits = session.prefill(prompt)
    for _ in range(_TOKENS):
        logits = session.decode(int(np.argmax(logits)))
    return session.state.digest(), session.routing_digest
