"""`workbench simulate`: caches and the twin on recorded, synthetic and foreign routes. Everything it prints is simulated."""

from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from workbench.cli.output import print_json, print_table
from workbench.cli.track import file_results
from workbench.config import overlay, read_toml
from workbench.errors import BadInput
from workbench.paths import runs_folder
from workbench.schema import METRICS, RunFolder, write_routes

Settings = Annotated[tuple[str, ...], Parameter(name="--set", negative=())]

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


def register(app: App) -> None:
    """Adds the commands."""
    group = App(name="simulate")

    @group.default
    def simulate(*words: Annotated[str, Parameter(show=False)]) -> None:
        """Replays routes through caches and through the runtime's twin; all of it is simulated.

        Example: workbench simulate misses flash-next-like

        Parameters
        ----------
        words
            Nothing: a word here is a command that does not exist.
        """
        if words:
            near = get_close_matches(words[0], [name for name in group if not name.startswith("-")], n=1)
            hint = f"; did you mean {near[0]}?" if near else " (see workbench simulate --help)"
            raise BadInput(f"no such command: simulate {words[0]!r}" + hint)
        group.help_print()

    group.command(misses)
    group.command(published)
    group.command(twin)
    group.command(sweep)
    group.command(routes)
    group.command(import_trace, name="import")
    app.command(group)


def misses(source: str = "flash-next-like", *, settings: Settings = (), out: Path | None = None, json: bool = False) -> None:
    """Misses per token of every cache policy at several capacities, with 95 % intervals by request.

    Example: workbench simulate misses runs/trace/ID/artifacts/routes.parquet --set fractions=[0.25,0.5]

    Parameters
    ----------
    source
        A route trace (.parquet), or flash-next-like, independent, repeated, loop or scan.
    settings
        Any setting, e.g. policies=["lru","belady"] or routes.tokens=100; may be given again and again.
    out
        Folder for the result folder, instead of runs/.
    json
        One JSON document instead of a table.
    """
    from workbench.experiments.simulation import MissesConfig, simulate_misses

    config = MissesConfig.build({"routes": {"source": source}}, settings)
    _show(simulate_misses(config, root=out), "misses", f"misses per token on {source}, simulated", json=json)
    file_results(out or runs_folder())


def published(*, seed: int = 0, json: bool = False) -> None:
    """Published marginals and misses of Flash-Next beside those of the synthetic routes, with the errors.

    Example: workbench simulate published

    Parameters
    ----------
    seed
        Of the synthetic routes.
    json
        One JSON document instead of tables.
    """
    from workbench.simulate.marginals import marginals_beside_published
    from workbench.simulate.published import misses_beside_published
    from workbench.simulate.synthetic import FLASH_NEXT_LIKE

    marginals = marginals_beside_published(FLASH_NEXT_LIKE, seed=seed)
    rows = misses_beside_published(FLASH_NEXT_LIKE, seed=seed).to_dicts()
    if json:
        print_json("published", {"marginals": marginals, "misses": rows})
        return
    print_table(_rounded(marginals), "marginals, published and synthetic")
    print_table(_rounded(rows), "misses per token, published and simulated")


def twin(
    source: str = "flash-next-like",
    *,
    envelope: str | None = None,
    slots: int | None = None,
    stages: str | None = None,
    config: Path | None = None,
    settings: Settings = (),
    out: Path | None = None,
    json: bool = False,
) -> None:
    """Runs the runtime's scheduler and caches on a virtual clock: tokens/s and waits of a machine that is not here.

    Example: workbench simulate twin --envelope m2-mini-256gb --slots 1000 --set twin.prefetch.kind=oracle

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
        A TOML file with the settings of a twin's run; other options, then --set, lie over it.
    settings
        Any setting, e.g. twin.order=ready or token_ms=25; may be given again and again.
    out
        Folder for the result folder, instead of runs/.
    json
        One JSON document instead of a table.
    """
    from workbench.experiments.simulation import TwinRunConfig, simulate_twin

    options = {"routes": {"source": source}, "envelope": envelope, "twin": {"num_slots": slots}, "stages": stages}
    made = TwinRunConfig.build(overlay(read_toml(config) if config else {}, options), settings)
    folder = simulate_twin(made, root=out)
    result = folder.result
    assert result is not None
    if json:
        print_json("twin", {"folder": str(folder.path), **result.model_dump(mode="json")})
    else:
        rows = [
            {"metric": name, "value": f"{result.metrics[name]:.4g}", "unit": METRICS[name].unit}
            for name in _SHOWN
            if name in result.metrics
        ]
        print_table(rows, f"{made.envelope}, {made.twin.num_slots} slots, {made.twin.prefetch.label}, simulated")
        print(f"\nresult folder: {folder.path}")
    file_results(out or runs_folder())


def sweep(config: Path | None = None, *, settings: Settings = (), out: Path | None = None, json: bool = False) -> None:
    """Runs a grid of twins over a pool of processes; the same command goes on after an interruption.

    Example: workbench simulate sweep --set num_slots=[2000,4008,8000] --set envelopes=["m5-pro-2tb","usb-10gbps"]

    Parameters
    ----------
    config
        A TOML file with the grid; --set lies over it.
    settings
        Any setting, e.g. policies=["lru"]; may be given again and again.
    out
        Folder for the result folder, instead of runs/.
    json
        One JSON document instead of a table.
    """
    from workbench.experiments.sweep import SweepConfig, run_sweep

    made = SweepConfig.build(read_toml(config) if config else {}, settings)
    _show(run_sweep(made, root=out), "sweep", "twins, simulated", json=json)
    file_results(out or runs_folder())


def routes(source: str = "flash-next-like", *, out: Path, settings: Settings = ()) -> None:
    """Writes made-up routes as a route trace.

    Example: workbench simulate routes loop --out /tmp/loop.parquet --set layers=8 --set experts=128

    Parameters
    ----------
    source
        flash-next-like, independent, repeated, loop or scan.
    out
        The file to write.
    settings
        Any setting, e.g. tokens=1000 or seed=7; may be given again and again.
    """
    from workbench.experiments.simulation import RoutesConfig, load_routes

    config = RoutesConfig.build({"source": source}, settings)
    made = load_routes(config)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_routes(made.frame, out, num_layers=made.num_layers, num_experts=made.num_experts, top_k=config.top_k)
    print(out)


def import_trace(file: Path, *, layers: int, experts: int, top_k: int, out: Path) -> None:
    """Checks a foreign route trace and writes it as one of ours.

    Example: workbench simulate import theirs.jsonl --layers 48 --experts 512 --top-k 10 --out theirs.parquet

    Parameters
    ----------
    file
        Parquet or JSON lines with request, position, layer and ids (highest weight first).
    layers
        Layers of the model.
    experts
        Experts of a layer.
    top_k
        Experts a token uses in a layer.
    out
        The file to write.
    """
    from workbench.simulate.importer import import_routes

    frame = import_routes(file, num_layers=layers, num_experts=experts, top_k=top_k)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_routes(frame, out, num_layers=layers, num_experts=experts, top_k=top_k)
    print(f"{out}: {frame['request'].n_unique()} requests, {frame.height // layers} tokens")


def _show(folder: RunFolder, table: str, title: str, *, json: bool) -> None:
    result = folder.result
    assert result is not None
    if json:
        print_json("simulate", {"folder": str(folder.path), **result.model_dump(mode="json")})
        return
    print_table(_rounded(result.tables[table]), title)
    print(f"\nresult folder: {folder.path}")


def _rounded(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Four significant digits are enough for people."""
    return [{name: f"{value:.4g}" if isinstance(value, float) else value for name, value in row.items()} for row in rows]
