"""`workbench simulate`: caches and the twin on recorded, synthetic and imported routes. Everything it prints is simulated."""

from pathlib import Path

from cyclopts import App

from workbench.cli import simulate_twin
from workbench.cli.groups import command_group
from workbench.cli.output import OutputFile, OutputFolder, print_json, print_table
from workbench.cli.simulated import Settings, rounded, show
from workbench.cli.track import file_results
from workbench.cli.values import Seed
from workbench.paths import runs_folder
from workbench.schema import write_routes
from workbench.schema.routes import check_geometry


def register(app: App) -> None:
    """Adds the commands."""
    group = command_group(
        "simulate",
        "Replays routes through caches and through the twin, the runtime on a virtual clock; all figures are simulated.",
        "simulate misses flash-next-like",
    )
    group.command(misses)
    group.command(published)
    simulate_twin.register(group)
    group.command(routes)
    group.command(import_trace, name="import")
    app.command(group)


def misses(
    source: str = "flash-next-like", *, settings: Settings = (), out: OutputFolder | None = None, json: bool = False
) -> None:
    """Simulates misses per token of every cache policy at several capacities, with 95 % intervals by request.

    Example: workbench simulate misses runs/trace/ID/artifacts/routes.parquet --set fractions=[0.25,0.5]

    Parameters
    ----------
    source
        A route trace (.parquet), or flash-next-like, independent, repeated, loop or scan.
    settings
        Any setting, e.g. policies=["lru","belady"] or routes.tokens=100; may be repeated.
    out
        Folder for the result folder, instead of runs/.
    json
        One JSON document instead of a table.
    """
    from workbench.experiments.simulation import MissesConfig, simulate_misses

    config = MissesConfig.build({"routes": {"source": source}}, settings)
    show(simulate_misses(config, root=out), "misses", f"misses per token on {source}, simulated", json=json)
    file_results(out or runs_folder())


def published(*, seed: Seed = 0, json: bool = False) -> None:
    """Compares marginals and misses of the synthetic routes with those published for Flash-Next, with the errors.

    Example: workbench simulate published

    Parameters
    ----------
    seed
        Seed of the synthetic routes.
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
    print_table(rounded(marginals), "marginals, published and synthetic")
    print_table(rounded(rows), "misses per token, published and simulated")


def routes(source: str = "flash-next-like", *, out: OutputFile, settings: Settings = ()) -> None:
    """Writes synthetic routes as a route trace.

    Example: workbench simulate routes loop --out /tmp/loop.parquet --set layers=8 --set experts=128

    Parameters
    ----------
    source
        flash-next-like, independent, repeated, loop or scan.
    out
        The file to write.
    settings
        Any setting, e.g. tokens=1000 or seed=7; may be repeated.
    """
    from workbench.experiments.simulation import RoutesConfig, load_routes

    config = RoutesConfig.build({"source": source}, settings)
    check_geometry(out, num_layers=config.layers, num_experts=config.experts, top_k=config.top_k)
    made = load_routes(config)
    write_routes(made.frame, out, num_layers=made.num_layers, num_experts=made.num_experts, top_k=config.top_k)
    print(out)


def import_trace(file: Path, *, layers: int, experts: int, top_k: int, out: OutputFile) -> None:
    """Checks a route trace of another program and writes it in the workbench's format.

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
    write_routes(frame, out, num_layers=layers, num_experts=experts, top_k=top_k)
    print(f"{out}: {frame['request'].n_unique()} requests, {frame.height // layers} tokens")
