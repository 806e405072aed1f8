"""The planner: expected tokens/s of a machine for Flash-Next, as a range, from cache misses, disk bandwidth and compute time.

A pass computes for `compute_ms` and reads as many records as `MISSES_BY_SLOTS` gives for the machine's slots. Best case: all
reads overlap compute; worst case: no read does. Drafting `mtp_depth` tokens lengthens a pass and commits more tokens per pass.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import AfterValidator, Field

from workbench.config import Config, Count, Figure
from workbench.errors import BadInput
from workbench.files import read_json
from workbench.geometry import FLASH_NEXT
from workbench.units import GB

MISSES_BY_SLOTS = {
    480: (312.5, 347.3),
    960: (265.1, 251.1),
    1440: (215.7, 196.8),
    1920: (178.7, 161.4),
    2880: (140.0, 115.6),
    4008: (108.5, 81.6),
    5712: (80.7, 51.2),
    8000: (66.4, 27.8),
    10_200: (66.1, 15.8),
    12_000: (66.1, 10.4),
    24_576: (66.1, 9.2),
}
"""Misses per token (worst case, best case) by number of slots, simulated on the Flash-Next-like routes with seed 0.

Worst case: LRU over 128 tokens from an empty cache, which agrees with reports of short runs: slotstream's hit rates amount to
253, 207, 141 and 75 to 88 misses per token at 20, 30, 60 and 119 slots per layer. Best case, a long session: LFRU over the
second of two requests of 300 tokens.
"""

COMMITTED = {0: (1.0, 1.0), 1: (1.6, 1.86), 2: (2.1, 2.57)}
"""Tokens that a pass commits (worst case, best case) by draft depth: in serving, and at slotstream's measured acceptance."""

PASS_COST_PER_DRAFT = 0.16
"""Compute that each draft token adds to a pass, as a share of a pass without drafts (slotstream)."""

OVERHEAD_GB = (6.6, 8.3)
"""Lowest and highest part of the budget that can't hold expert slots, decimal GB: trunk, states, scratch, n-gram rows.

From slotstream's 10, 20 and 24 GB budgets.
"""


def _ascending(ends: tuple[float, float]) -> tuple[float, float]:
    if ends[0] > ends[1]:
        raise ValueError(f"the lower end comes first (got {ends[0]:g}, {ends[1]:g})")
    return ends


Range = Annotated[tuple[Figure, Figure], AfterValidator(_ascending)]
"""Lowest and highest figure."""


class PlannedMachine(Config):
    """The planner's inputs for one machine."""

    name: str
    """Name on the command line."""
    device: str
    """Description of the hardware."""
    budget_gb: float = Field(gt=0, le=1e6)
    """Memory that the engine may use, decimal GB."""
    ssd_gbps: Range
    """Lowest and highest rate at which an engine reads records from the disk, decimal GB/s."""
    compute_ms: Range
    """Shortest and longest compute of a pass without drafts and without reads, host time included, milliseconds."""
    mtp_depth: int = Field(0, ge=0, le=2)
    """Draft tokens per pass."""
    num_slots: Count | None = None
    """Expert slots of the cache; default: computed from `budget_gb`."""
    reported_tps: Range | None = None
    """Lowest and highest reported speed, tokens/s; None: no report."""
    source: str = ""
    """Source of the figures."""
    assumed: tuple[str, ...] = ()
    """Inputs that are assumed because no source gives them."""


@dataclass(frozen=True, kw_only=True)
class SpeedPlan:
    """The planner's answer for one machine."""

    tokens_per_s: tuple[float, float]
    """Lowest and highest: worst and best case."""
    num_slots: tuple[int, int]
    """Fewest and most expert slots."""
    misses_per_token: tuple[float, float]
    """Lowest and highest: best and worst case."""
    bound_by: str
    """reads or compute, whichever takes longer at the middle of the ranges."""
    gains: dict[str, float]
    """Factor by which the middle estimate of tokens/s grows, by change of the machine."""


def plan(machine: PlannedMachine) -> SpeedPlan:
    """The speed plan of a machine. Raises BadInput when its budget does not hold one token's records."""
    slots = _slots(machine)
    best, worst = _token_ms(machine, slots[1], best=True), _token_ms(machine, slots[0], best=False)
    middle = _middle_ms(machine)
    more = machine.model_copy(update={"budget_gb": machine.budget_gb + 8, "num_slots": _more_slots(machine, 8)})
    faster = machine.model_copy(update={"ssd_gbps": tuple(2 * rate for rate in machine.ssd_gbps)})
    quicker = machine.model_copy(update={"compute_ms": tuple(ms / 2 for ms in machine.compute_ms)})
    changes = {"8 GB more memory": more, "a disk twice as fast": faster, "half the compute time": quicker}
    return SpeedPlan(
        tokens_per_s=(1000 / sum(worst), 1000 / max(best)),
        num_slots=slots,
        misses_per_token=(_misses(slots[1], best=True), _misses(slots[0], best=False)),
        bound_by="reads" if middle[1] > middle[0] else "compute",
        gains={change: sum(middle) / sum(_middle_ms(other)) for change, other in changes.items()},
    )


def _slots(machine: PlannedMachine) -> tuple[int, int]:
    if machine.num_slots is not None:
        return machine.num_slots, machine.num_slots
    record_gb, total = FLASH_NEXT.record_bytes / GB, FLASH_NEXT.num_hidden_layers * FLASH_NEXT.num_experts
    least = FLASH_NEXT.num_hidden_layers * FLASH_NEXT.num_experts_per_tok
    fewest, most = (min(total, int((machine.budget_gb - overhead) / record_gb)) for overhead in reversed(OVERHEAD_GB))
    if most < least:
        needed = OVERHEAD_GB[0] + least * record_gb
        raise BadInput(
            f"a budget of {machine.budget_gb:g} GB holds {max(most, 0)} records, one token needs {least}: "
            f"give {needed:.1f} GB or more"
        )
    return max(least, fewest), most


def _more_slots(machine: PlannedMachine, more_gb: float) -> int | None:
    if machine.num_slots is None:
        return None
    return machine.num_slots + int(more_gb * GB / FLASH_NEXT.record_bytes)


def _misses(num_slots: int, *, best: bool) -> float:
    """Misses per token, interpolated between the points of `MISSES_BY_SLOTS` on logarithmic axes."""
    curve = np.log([misses[best] for misses in MISSES_BY_SLOTS.values()])
    return float(np.exp(np.interp(np.log(num_slots), np.log(list(MISSES_BY_SLOTS)), curve)))


def _token_ms(machine: PlannedMachine, num_slots: int, *, best: bool) -> tuple[float, float]:
    """Compute time and read time per committed token, milliseconds."""
    committed = COMMITTED[machine.mtp_depth][best]
    compute_ms = machine.compute_ms[0 if best else 1] * (1 + PASS_COST_PER_DRAFT * machine.mtp_depth) / committed
    read_ms = 1000 * _misses(num_slots, best=best) * FLASH_NEXT.record_bytes / GB / machine.ssd_gbps[best]
    return compute_ms, read_ms


def _middle_ms(machine: PlannedMachine) -> tuple[float, float]:
    slots = _slots(machine)
    ends = (_token_ms(machine, slots[1], best=True), _token_ms(machine, slots[0], best=False))
    return (ends[0][0] + ends[1][0]) / 2, (ends[0][1] + ends[1][1]) / 2


def load_machines(folder: Path) -> dict[str, PlannedMachine]:
    """Machines of a folder's JSON files, by name. Raises BadInput on a file with invalid fields."""
    machines = [PlannedMachine.build(values) for path in sorted(folder.glob("*.json")) for values in read_json(path)]
    return {machine.name: machine for machine in machines}


def beside_reported(machines: Iterable[PlannedMachine]) -> list[dict[str, float | str | bool]]:
    """One row per machine with a reported figure: the planned range, the reported one, and whether the two overlap."""
    rows: list[dict[str, float | str | bool]] = []
    for machine in machines:
        if machine.reported_tps is not None:
            low, high = plan(machine).tokens_per_s
            least, most = machine.reported_tps
            rows.append(
                {
                    "machine": machine.name,
                    "planned_low_tps": low,
                    "planned_high_tps": high,
                    "reported_tps": f"{least:g}" if least == most else f"{least:g} to {most:g}",
                    "covered": low <= most and least <= high,
                }
            )
    return rows
