"""`workbench bench`: read rates of the workbench's readers on this disk, also against fio, and times of the prefill modes."""

import sys
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from cyclopts import App, Parameter

from workbench.cli.groups import command_group
from workbench.cli.output import OutputFolder, print_json, print_table
from workbench.cli.simulated import Settings, rounded
from workbench.cli.values import Seed
from workbench.errors import BadInput
from workbench.units import MIB, PAGE_BYTES, format_bytes, parse_bytes

_DEPTHS = (1, 4, 8, 16)
_PAGE_DEPTHS = (32, 256)
_MOST_DEPTH = 1024
"""Far above the depth up to which any disk gains."""


def register(app: App) -> None:
    """Adds the commands."""
    group = command_group(
        "bench",
        "Measures this disk: reads by our readers (io), and the modes of prefill (modes).",
        "bench io --against fio",
    )
    group.command(io)
    group.command(modes)
    app.command(group)


def io(
    *,
    against: Literal["fio", "nothing"] = "nothing",
    profile: str = "mini",
    reader: Literal["uring", "pread", "best"] = "best",
    depths: Annotated[tuple[int, ...], Parameter(negative=(), consume_multiple=True)] = _DEPTHS,
    pairs: int = 7,
    pages: int = 100_000,
    file_bytes: str = "2GiB",
    seed: Seed = 0,
    json: bool = False,
) -> None:
    """Reads records and pages of a probe file uncached; with `--against fio`, fio and our reader take turns and are compared.

    Both read into huge pages where the system has them. An interval is that of a median by order statistics, 95 %; fewer
    than 6 pairs have none. The file lies beside the profile's store and is removed afterwards. Exit status 3: fio is not
    installed.

    Example: workbench bench io --against fio --profile flash-next

    Parameters
    ----------
    against
        fio: run fio in turn with the workbench's reader.
    profile
        Profile whose record size is read: mini, slice or flash-next.
    reader
        uring, pread, or best: the one that a session uses on this machine.
    depths
        Records in flight, one row each.
    pairs
        Repeats of each row; with fio a repeat is a pair.
    pages
        Pages of 4 KiB submitted in one batch, with 32 and with 256 in flight; 0: no reads of pages.
    file_bytes
        Size of the probe file, a multiple of 8 MiB; each run reads all of its records once.
    seed
        Seed of the file's content and of the order of reads.
    json
        One JSON document instead of tables.
    """
    from workbench.gates.a_storage.cells import RECORD, Layout
    from workbench.gates.a_storage.file import probe_file
    from workbench.gates.a_storage.fio import fio_engine, fio_version, pages_against_fio, records_against_fio
    from workbench.gates.a_storage.probe import Probe
    from workbench.gates.traces import profile_geometry
    from workbench.paths import store_folder

    _check(pairs, depths)
    tool = f"{fio_version()}, {fio_engine()}" if against == "fio" else ""
    place, size = store_folder(profile).parent, parse_bytes(file_bytes)
    kind = _reader(reader)
    layout = Layout.of(profile_geometry(profile))
    if size < max(depths) * layout.window_bytes(RECORD):
        raise BadInput(f"--file-bytes {file_bytes}: it must hold as many records as --depths keeps in flight, {max(depths)}")
    if not 0 <= pages <= size // PAGE_BYTES:
        raise BadInput(f"--pages {pages}: --file-bytes {file_bytes} hold 0 to {size // PAGE_BYTES:,}")
    memory = max(max(depths) * layout.window_bytes(RECORD), 16 * MIB)
    print(f"a probe file of {format_bytes(size)} in {place}, removed afterwards", file=sys.stderr)
    with probe_file(place, size, seed=seed) as path:
        probe = Probe.on(path, layout, memory, seed)
        page_depths = _PAGE_DEPTHS if pages else ()
        if against == "fio":
            rows = [records_against_fio(probe, kind, depth, pairs=pairs) for depth in depths]
            batches = [pages_against_fio(probe, kind, pages, depth, pairs=pairs) for depth in page_depths]
        else:
            rows = [_records_alone(probe, kind, depth, pairs) for depth in depths]
            batches = [_pages_alone(probe, kind, pages, depth, pairs) for depth in page_depths]
    _show(rows, batches, tool, json=json)


def _check(pairs: int, depths: Sequence[int]) -> None:
    if pairs < 1 or not depths or min(depths) < 1 or max(depths) > _MOST_DEPTH:
        raise BadInput(f"--pairs must be at least 1, --depths from 1 to {_MOST_DEPTH}")


def _reader(name: str) -> str:
    from workbench.readers.ring import ring_refusal

    return name if name != "best" else ("uring" if ring_refusal() is None else "pread")


def _records_alone(probe: Any, kind: str, depth: int, repeats: int) -> dict[str, Any]:
    from workbench.analysis.storage import median_of, spread_of
    from workbench.gates.a_storage.cells import RECORD, Cell

    runs = [probe.read_all(Cell(reader=kind, size=RECORD, depth=depth)) for _ in range(repeats)]
    shown = ("bandwidth_gbps", "reads_per_s", "p50_us", "p99_us", "cpu_us_per_read")
    medians = {name: median_of([run[name] for run in runs]).value for name in shown}
    spread = spread_of([run["bandwidth_gbps"] for run in runs])
    return {"size": RECORD, "reader": kind, "depth": depth, "runs": repeats, **medians, "spread": spread}


def _pages_alone(probe: Any, kind: str, pages: int, depth: int, repeats: int) -> dict[str, Any]:
    from workbench.gates.a_storage.fio import read_batch

    batches = [read_batch(probe, kind, pages, depth) for _ in range(repeats)]
    names = ("submit_us_per_page", "cpu_us_per_page", "user_us_per_page")
    medians = {name: float(np.median([getattr(batch, name) for batch in batches])) for name in names}
    rate = float(np.median([batch.rate.reads_per_s for batch in batches]))
    return {"pages": pages, "reader": kind, "depth": depth, "runs": repeats, "reads_per_s": rate, **medians}


def _show(rows: list[dict[str, Any]], batches: list[dict[str, Any]], tool: str, *, json: bool) -> None:
    if json:
        print_json("bench_io", {"evidence": "physical", "against": tool or None, "rows": rows, "batches": batches})
        return
    beside = f" against {tool}" if tool else ""
    print_table(rows, f"Records, uncached{beside} (physical)")
    if batches:
        print_table(batches, f"Pages of 4 KiB in one batch, `depth` in flight{beside} (physical)")


def modes(
    *,
    profile: str = "slice",
    tiles: Annotated[tuple[int, ...], Parameter(negative=(), consume_multiple=True)] = (),
    repeats: int | None = None,
    before_us: float | None = None,
    pair_us: float | None = None,
    smoke: bool = False,
    settings: Settings = (),
    out: OutputFolder | None = None,
    json: bool = False,
) -> None:
    """Reads one layer for prompt tiles of several lengths: the selected experts only, all experts, and as the runtime chooses.

    Reads are real, compute is emulated by timed waits: per token before the router, and per token and routed expert.

    Example: workbench bench modes --tiles 16 256 2048 --before-us 20 --pair-us 1.5

    Parameters
    ----------
    profile
        Profile whose store is read: mini, slice or flash-next.
    tiles
        Tokens of each tile; default 16 64 256 1024 2048.
    repeats
        Passes of each tile and mode; default 4.
    before_us
        Compute of one token before its router's choice is known, microseconds.
    pair_us
        Compute of one token in one routed expert, microseconds.
    smoke
        Two tiles, one pass each: shows that the command works.
    settings
        Any setting, e.g. runtime.cache_bytes=2147483648 or layer=3; may be repeated.
    out
        Folder for the result folder, instead of runs/.
    json
        One JSON document instead of a table.
    """
    from workbench.cli.track import file_results
    from workbench.config import overlay
    from workbench.experiments.modes import ModesConfig, run_modes
    from workbench.paths import runs_folder

    given = {"tiles": tiles or None, "repeats": repeats, "before_us": before_us, "pair_us": pair_us}
    values = overlay({"tiles": [16, 64], "repeats": 1, "probe_s": 0.1} if smoke else {}, {"profile": profile, **given})
    folder = run_modes(ModesConfig.build(values, settings), root=out)
    result = folder.result
    assert result is not None
    if json:
        print_json("modes", {"folder": str(folder.path), **result.model_dump(mode="json")})
    else:
        print_table(
            rounded(result.tables["crossover"]), f"Prefill modes on one layer of {profile} (emulated: compute is a timed wait)"
        )
        print(f"\ndisk: {result.tags['rates_source']}\nresult folder: {folder.path}")
    file_results(out or runs_folder())
