"""`workbench plan`: tokens/s to expect of a machine for Flash-Next. Arithmetic on published and simulated figures."""

from typing import Literal

from cyclopts import App

from workbench.cli.output import print_json, print_table
from workbench.errors import BadInput, did_you_mean
from workbench.paths import data_folder
from workbench.simulate.planner import (
    COMMITTED,
    OVERHEAD_GB,
    PASS_COST_PER_DRAFT,
    PlannedMachine,
    SpeedPlan,
    beside_reported,
    load_machines,
)
from workbench.simulate.planner import plan as make_plan


def register(app: App) -> None:
    """Adds the command."""
    app.command(plan)


def plan(
    machine: str | None = None,
    *,
    budget_gb: float | None = None,
    ssd_gbps: tuple[float, float] | None = None,
    compute_ms: tuple[float, float] | None = None,
    drafts: Literal[0, 1, 2] | None = None,
    published: bool = False,
    json: bool = False,
) -> None:
    """Estimates the tokens/s of a Mac as a range, with the bottleneck and the changes that would help most (simulated).

    Example: workbench plan --budget-gb 20 --ssd-gbps 5 6.5 --compute-ms 45 90

    Parameters
    ----------
    machine
        Name of a machine with published reports; other options override its known values.
    budget_gb
        Memory that the engine may use, decimal GB.
    ssd_gbps
        Lowest and highest bandwidth of record reads, decimal GB/s.
    compute_ms
        Shortest and longest compute of a pass without drafts, all weights in memory, milliseconds.
    drafts
        Drafted tokens per forward pass: 0, 1 or 2.
    published
        Show every reported machine's plan beside its report.
    json
        One JSON document instead of tables.
    """
    known = load_machines(data_folder() / "machines")
    if published:
        _show_published(known, json=json)
        return
    given = {"budget_gb": budget_gb, "ssd_gbps": ssd_gbps, "compute_ms": compute_ms, "mtp_depth": drafts}
    chosen = _choose(machine, known, {name: value for name, value in given.items() if value is not None})
    answer = make_plan(chosen)
    if json:
        print_json("plan", {"machine": chosen.model_dump(mode="json"), **vars(answer)})
        return
    _show(chosen, answer)


def _choose(name: str | None, known: dict[str, PlannedMachine], given: dict[str, object]) -> PlannedMachine:
    if name is None:
        for option in ("budget_gb", "ssd_gbps", "compute_ms"):
            if option not in given:
                flag = "--" + option.replace("_", "-")
                raise BadInput(f"give {flag}, or the name of a machine: {', '.join(known)}")
        return PlannedMachine.build({"name": "yours", "device": "as given", **given})
    if name not in known:
        hint = f"known are {', '.join(known)}"
        raise BadInput(f"no machine {name!r}, {did_you_mean(name, known, otherwise=hint)}")
    changed = {"num_slots": None, "reported_tps": None, **given} if given else {}
    return PlannedMachine.build({**known[name].model_dump(mode="json"), **changed})


def _show(machine: PlannedMachine, answer: SpeedPlan) -> None:
    low, high = answer.tokens_per_s
    rows = [
        {"": "tokens/s", "worst case": f"{low:.3g}", "best case": f"{high:.3g}"},
        {"": "record slots", "worst case": str(answer.num_slots[0]), "best case": str(answer.num_slots[1])},
        {
            "": "misses per token",
            "worst case": f"{answer.misses_per_token[1]:.3g}",
            "best case": f"{answer.misses_per_token[0]:.3g}",
        },
        {"": "disk GB/s", "worst case": f"{machine.ssd_gbps[0]:g}", "best case": f"{machine.ssd_gbps[1]:g}"},
        {
            "": "compute of a plain pass, ms",
            "worst case": f"{machine.compute_ms[1]:g}",
            "best case": f"{machine.compute_ms[0]:g}",
        },
    ]
    print_table(rows, f"Flash-Next on {machine.device}, simulated")
    print(f"\nbound by {answer.bound_by}")
    print_table(
        [{"change": change, "tokens/s": f"x {gain:.2f}"} for change, gain in _best_first(answer.gains)], "What would help"
    )
    if machine.reported_tps is not None:
        print(f"\nreported: {machine.reported_tps[0]:g} to {machine.reported_tps[1]:g} tokens/s ({machine.source})")
    committed, cost = COMMITTED[machine.mtp_depth], 1 + PASS_COST_PER_DRAFT * machine.mtp_depth
    print("\nWorst case: 128 tokens from an empty LRU cache, no read overlapped with compute.")
    print("Best case: a long session under LFRU, every read overlapped with compute.")
    print(f"{OVERHEAD_GB[0]:g} to {OVERHEAD_GB[1]:g} GB of the budget hold trunk, states, scratch and n-gram rows, not experts.")
    print(f"Drafted tokens per forward pass: {machine.mtp_depth}; compute of a pass / compute without drafts: {cost:g};")
    print(f"tokens committed per pass: {committed[0]:g} (worst case) or {committed[1]:g} (best case).")
    print("Published reports are near the worst case: see `workbench plan --published`.")
    for assumption in machine.assumed:
        print(f"assumed: {assumption}")


def _best_first(gains: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(gains.items(), key=lambda item: -item[1])


def _show_published(known: dict[str, PlannedMachine], *, json: bool) -> None:
    rows = beside_reported(known.values())
    covered = sum(bool(row["covered"]) for row in rows)
    if json:
        print_json("plans", {"machines": rows, "covered": covered})
        return
    shown = [{name: f"{value:.3g}" if isinstance(value, float) else value for name, value in row.items()} for row in rows]
    print_table(shown, "Plans beside reports, simulated")
    print(f"\n{covered} of {len(rows)} reported ranges overlap the planned range")
