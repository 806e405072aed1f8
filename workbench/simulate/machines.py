"""The twin's tokens/s for machines with a reported figure: a middle estimate, and the range left by unknown inputs."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from workbench.scheduling.ticket import WaveSize
from workbench.schema import EventLog
from workbench.schema.envelopes import Envelope
from workbench.schema.generated import generated_passes
from workbench.simulate.passes import blocks
from workbench.simulate.planner import COMMITTED, PASS_COST_PER_DRAFT, PlannedMachine, plan
from workbench.simulate.stages import StageTimes
from workbench.simulate.synthetic import FLASH_NEXT_LIKE, synthetic_routes
from workbench.simulate.twin import Twin, TwinConfig
from workbench.units import NS_PER_S

NUM_TOKENS = 128
"""Accepted tokens of the simulated session, which starts with an empty cache, as reported sessions do."""
_LATENCY_US = 60.0
"""Assumed read latency of every disk, since a machine's entry gives bandwidth only; far shorter than reading a record."""
_IOPS = 200_000.0
"""Assumed reads per second of every disk: far more than records per second."""


@dataclass(frozen=True, kw_only=True)
class Assumed:
    """A point within the ranges of a machine's unknown inputs."""

    at: float
    """0: slowest disk, longest compute, fewest slots and committed tokens; 1: the other ends; between: geometric mean."""
    wave: WaveSize
    """How many missing experts compute waits for before it runs them."""


ENDS = {
    "low": Assumed(at=0.0, wave="barrier"),
    "middle": Assumed(at=0.5, wave="barrier"),
    "high": Assumed(at=1.0, wave=1),
}
"""The simulated points. Reported engines read all misses of a layer before its experts run; only `high` overlaps the two."""


def session_keys(seed: int = 0) -> np.ndarray:
    """Record keys of one Flash-Next-like request of `NUM_TOKENS` tokens, int64 `[tokens, layers, top_k]`."""
    routes = synthetic_routes(FLASH_NEXT_LIKE, num_requests=1, num_tokens=NUM_TOKENS, seed=seed)[0]
    return routes.astype(np.int64) + np.arange(FLASH_NEXT_LIKE.num_layers)[:, None] * FLASH_NEXT_LIKE.num_experts


def twin_tps(machine: PlannedMachine, assumed: Assumed, keys: np.ndarray) -> float:
    """Committed tokens/s of the twin with an LRU cache, drafts verified in one pass. `keys`: `[tokens, layers, top_k]`."""
    committed = _between(COMMITTED[machine.mtp_depth], assumed.at)
    token_ms = _between(machine.compute_ms[::-1], assumed.at) * (1 + PASS_COST_PER_DRAFT * machine.mtp_depth)
    slots = _between(plan(machine).num_slots, assumed.at)
    config = TwinConfig(num_slots=round(slots), policy="lru", wave=assumed.wave, num_experts=FLASH_NEXT_LIKE.num_experts)
    passes = list(blocks(keys, drafts=machine.mtp_depth, committed=committed))
    stages = StageTimes.uniform(FLASH_NEXT_LIKE.num_layers, token_ms)
    envelope = _envelope(machine, _between(machine.ssd_gbps, assumed.at))
    return _tps(Twin(config, stages, envelope, EventLog()).run(passes).frame())


def beside_reports(machine: PlannedMachine, keys: np.ndarray) -> dict[str, float | str | bool]:
    """One row of the table: the reported tokens/s, the twin's estimate, its error and range, and whether both ranges overlap.

    Raises ValueError for a machine without a reported figure.
    """
    if machine.reported_tps is None:
        raise ValueError(f"{machine.name} has no reported tokens/s")
    low, middle, high = (twin_tps(machine, assumed, keys) for assumed in ENDS.values())
    least, most = machine.reported_tps
    reported = (least * most) ** 0.5
    return {
        "machine": machine.name,
        "reported_tps": reported,
        "twin_tps": middle,
        "error_percent": 100 * (middle / reported - 1),
        "twin_low_tps": low,
        "twin_high_tps": high,
        "covered": low <= most and least <= high,
    }


def _between(ends: tuple[float, float], at: float) -> float:
    return ends[0] ** (1 - at) * ends[1] ** at


def _envelope(machine: PlannedMachine, gbps: float) -> Envelope:
    return Envelope(
        name=machine.name,
        device=machine.device,
        source=machine.source,
        latency_us=_LATENCY_US,
        stream_gbps=gbps,
        bandwidth_gbps=gbps,
        iops=_IOPS,
    )


def _tps(events: pl.DataFrame) -> float:
    """Committed tokens divided by the time of all passes, the first included, as reported sessions start with an empty cache."""
    ended = generated_passes(events)
    return float(ended["committed_tokens"].sum()) * NS_PER_S / int(ended["duration_ns"].sum())
