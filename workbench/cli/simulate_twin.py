"""`workbench simulate twin`, `sweep`, `validate` and `machines`: the runtime on a virtual clock, and its errors."""

from pathlib import Path
from typing import Any

from cyclopts import App

from workbench.cli.output import OutputFolder, print_json, print_table
from workbench.cli.simulated import Settings, result_of, rounded, show
from workbench.cli.track import file_results
from workbench.cli.values import Seed
from workbench.config import overlay, read_toml
from workbench.paths import data_folder, runs_folder
from workbench.progress import progress
from workbench.schema import METRICS

_SHOWN = (
    "e2e/decode_tps",
    "e2e/tpot_p95_ms",
    "routing/misses_per_token",
    "routing/decode_hit_rate",
    "overlap/exposed_wait_ms",
    "overlap/hidden_fraction",
    "e2e/demand_bytes_per_token",
    "e2e/wasted_bytes_per_token",
    "storage/expert_bandwidth_gbps",
    "storage/expert_late_fraction",
)


def register(group: App) -> None:
    """Adds the commands to `workbench simulate`."""
    group.command(twin)
    group.command(sweep)
    group.command(validate)
    group.command(machines)


def twin(
    source: str = "flash-next-like",
    *,
    envelope: str | None = None,
    slots: int | None = None,
    stages: str | None = None,
    config: Path | None = None,
    settings: Settings = (),
    out: OutputFolder | None = None,
    json: bool = False,
) -> None:
    """Runs the runtime's scheduler and caches on a virtual clock: tokens/s and waits to expect on another machine.

    Example: workbench simulate twin --envelope m2-mini-256gb --slots 1000 --set twin.predictor=oracle

    Parameters
    ----------
    source
        A route trace (.parquet), or flash-next-like, independent, repeated, loop or scan.
    envelope
        Name of a file in data/envelopes, or a path.
    slots
        Records that the cache holds.
    stages
        A result folder whose run timed its stages, or a JSON file of stage times.
    config
        A TOML file with the settings of a twin's run; other options, then --set, override it.
    settings
        Any setting, e.g. twin.wave=barrier or token_ms=25; may be repeated.
    out
        Folder for the result folder, instead of runs/.
    json
        One JSON document instead of a table.
    """
    from workbench.experiments.simulation import TwinRunConfig, simulate_twin

    options = {"routes": {"source": source}, "envelope": envelope, "twin": {"num_slots": slots}, "stages": stages}
    made = TwinRunConfig.build(overlay(read_toml(config) if config else {}, options), settings)
    folder = simulate_twin(made, root=out)
    result = result_of(folder)
    if json:
        print_json("twin", {"folder": str(folder.path), **result.model_dump(mode="json")})
    else:
        rows = [
            {"metric": name, "value": f"{result.metrics[name]:.4g}", "unit": METRICS[name].unit}
            for name in _SHOWN
            if name in result.metrics
        ]
        print_table(rows, f"{made.envelope}, {made.twin.num_slots} slots, {made.twin.predictor_label}, simulated")
        show(folder, "estimates", "with the range of live figures, if the twin was validated", json=False)
    file_results(out or runs_folder())


def sweep(config: Path | None = None, *, settings: Settings = (), out: OutputFolder | None = None, json: bool = False) -> None:
    """Runs a grid of twins on a pool of processes; after an interruption, the same command resumes.

    Example: workbench simulate sweep --set num_slots=[2000,4008,8000] --set envelopes=["m5-pro-2tb","usb-10gbps"]

    Parameters
    ----------
    config
        A TOML file with the grid; --set overrides it.
    settings
        Any setting, e.g. policies=["lru"]; may be repeated.
    out
        Folder for the result folder, instead of runs/.
    json
        One JSON document instead of a table.
    """
    from workbench.experiments.sweep import SweepConfig, run_sweep

    made = SweepConfig.build(read_toml(config) if config else {}, settings)
    show(run_sweep(made, root=out), "sweep", "twins, simulated", json=json)
    file_results(out or runs_folder())


def validate(
    *,
    profile: str | None = None,
    config: Path | None = None,
    settings: Settings = (),
    out: OutputFolder | None = None,
    json: bool = False,
) -> int:
    """Runs the model live and in the twin and measures the twin's errors; later simulations of the profile show them.

    Exit status: 0 fit, 1 unfit, 4 not shown to be fit.

    Example: workbench simulate validate --set tokens=32

    Parameters
    ----------
    profile
        mini (default), slice or flash-next.
    config
        A TOML file with the settings of a validation; other options, then --set, override it.
    settings
        Any setting, e.g. envelopes=["","usb-10gbps"] or cache_shares=[0.3]; may be repeated.
    out
        Folder for the result folder, instead of runs/.
    json
        One JSON document instead of tables.
    """
    from workbench.experiments.twin_validation import TwinValidationConfig, validate_twin
    from workbench.gates.traces import ensure_store

    made = TwinValidationConfig.build(overlay(read_toml(config) if config else {}, {"profile": profile}), settings)
    ensure_store(made.profile)
    folder = validate_twin(made, root=out)
    result = result_of(folder)
    assert result.verdict is not None
    if json:
        print_json("validate", {"folder": str(folder.path), **result.model_dump(mode="json")})
    else:
        print_table([_run_row(row) for row in result.tables["runs"]], "Live (evidence: last column) / twin (simulated)")
        print_table(rounded(result.tables["errors"]), "Twin (simulated) / live - 1")
        print(f"\n**{result.verdict.outcome.value.upper()}** ({', '.join(result.verdict.codes)}). {result.verdict.summary}")
        print("\nRests on:\n" + "\n".join(f"- {condition}" for condition in result.verdict.conditions))
        print(f"\nresult folder: {folder.path}")
    file_results(out or runs_folder())
    return result.verdict.outcome.exit_code


def _run_row(row: dict[str, Any]) -> dict[str, str]:
    settings = {"disk": row["envelope"] or "this one", "cache": f"{row['cache_share']:.0%}", "policy": row["policy"]}
    pairs = {
        name: f"{row[f'live_{column}']:.3g} / {row[f'twin_{column}']:.3g}"
        for name, column in (("hit rate", "hit_rate"), ("token, ms", "token_ms"), ("exposed wait, ms", "exposed_wait_ms"))
    }
    return {**settings, "wave": row["wave"], "family": row["family"], **pairs, "evidence": row["live_evidence"]}


def machines(*, seed: Seed = 0, json: bool = False) -> None:
    """Compares the twin's tokens/s for Flash-Next with published reports of several machines.

    Example: workbench simulate machines

    Parameters
    ----------
    seed
        Seed of the synthetic routes.
    json
        One JSON document instead of a table.
    """
    from workbench.analysis.workers import completed
    from workbench.simulate.machines import NUM_TOKENS, beside_reports, session_keys
    from workbench.simulate.planner import load_machines

    reported = [each for each in load_machines(data_folder() / "machines").values() if each.reported_tps is not None]
    keys = session_keys(seed)
    with progress("machines", len(reported)) as advance:
        found = {}
        for index, row in completed(beside_reports, [(each, keys) for each in reported]):
            found[index] = row
            advance(1)
    rows = [found[index] for index in range(len(reported))]
    error = sum(abs(row["error_percent"]) for row in rows) / len(rows)
    covered = sum(row["covered"] for row in rows)
    if json:
        print_json("machines", {"machines": rows, "mean_absolute_error_percent": error, "covered": covered})
        return
    print_table(rounded(rows), "tokens/s, reported and simulated")
    print(f"\nmean absolute error {error:.0f} %; {covered} of {len(rows)} reported ranges overlap the twin's range, low to high")
    print(f"The twin runs {NUM_TOKENS} synthetic tokens from an empty LRU cache; the reported sessions started with one, too.")
    print("Its estimate waits for all misses of a layer, at the geometric means of the known ranges of disk and compute;")
    print("low and high take all ranges at their worst and best, and high overlaps reads with experts.")
