"""`workbench bench io`: what our readers reach on this disk, and against fio on the same file."""

import sys
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from cyclopts import App, Parameter

from workbench.cli.output import print_json, print_table
from workbench.errors import BadInput
from workbench.units import MIB, format_bytes, parse_bytes

_DEPTHS = (1, 4, 8, 16)
_PAGE_DEPTH, _BATCH_DEPTH = 32, 256


def register(app: App) -> None:
    """Adds the command."""
    app.command(bench)


def bench(
    what: Literal["io"],
    *,
    against: Literal["fio", "nothing"] = "nothing",
    profile: str = "mini",
    reader: Literal["uring", "pread", "best"] = "best",
    depths: Annotated[tuple[int, ...], Parameter(negative=(), consume_multiple=True)] = _DEPTHS,
    pairs: int = 7,
    seconds: float = 1.0,
    pages: int = 100_000,
    file_bytes: str = "2GiB",
    seed: int = 0,
    json: bool = False,
) -> None:
    """Reads records and pages of a probe file uncached; with `--against fio` in turn with fio: ratios and their intervals.

    An interval is that of a median by order statistics, 95 %; fewer than 6 pairs have none. The file lies beside the
    profile's store and is removed afterwards. Exit status 3: fio is not installed.

    Example: workbench bench io --against fio --profile flash-next

    Parameters
    ----------
    what
        io: reads of the profile's disk.
    against
        fio: run it in turn with our reader.
    profile
        Whose record size: mini, slice or flash-next.
    reader
        uring, pread, or the one that a session would take here.
    depths
        Records in flight, one row each.
    pairs
        Repeats of each row; with fio a repeat is a pair.
    seconds
        Of one run.
    pages
        Pages of 4 KiB submitted in one batch; 0 leaves the batch out.
    file_bytes
        Size of the probe file, a multiple of 8 MiB.
    seed
        Of its content and of the order of reads.
    json
        One JSON document instead of tables.
    """
    from workbench.gates.a_storage_cells import PAGE, RECORD, Layout
    from workbench.gates.a_storage_file import probe_file
    from workbench.gates.a_storage_fio import against_fio, batch_against_fio, fio_engine, fio_version
    from workbench.gates.a_storage_probe import Probe
    from workbench.gates.traces import profile_geometry
    from workbench.paths import store_folder

    _check(pairs, seconds, pages, depths)
    tool = f"{fio_version()}, {fio_engine()}" if against == "fio" else ""
    place, size = store_folder(profile).parent, parse_bytes(file_bytes)
    kind = _reader(reader)
    layout = Layout.of(profile_geometry(profile))
    memory = max(max(depths) * layout.window_bytes(RECORD), 16 * MIB)
    print(f"a probe file of {format_bytes(size)} in {place}, removed afterwards", file=sys.stderr)
    with probe_file(place, size, seed=seed) as path:
        probe = Probe.on(path, layout, memory, seed)
        cells = [(RECORD, depth) for depth in depths] + [(PAGE, _PAGE_DEPTH)]
        if against == "fio":
            rows = [against_fio(probe, kind, name, depth, pairs=pairs, seconds=seconds) for name, depth in cells]
            batch = [batch_against_fio(probe, kind, pages, _BATCH_DEPTH, pairs=pairs)] if pages else []
        else:
            rows = [_alone(probe, kind, name, depth, pairs, seconds) for name, depth in cells]
            batch = [_batch_alone(probe, kind, pages, pairs)] if pages else []
    _show(rows, batch, tool, json=json)


def _check(pairs: int, seconds: float, pages: int, depths: Sequence[int]) -> None:
    if pairs < 1 or seconds <= 0 or pages < 0 or not depths or min(depths) < 1:
        raise BadInput("--pairs and --depths must be at least 1, --seconds above 0 and --pages not negative")


def _reader(name: str) -> str:
    from workbench.readers.ring import ring_refusal

    return name if name != "best" else ("uring" if ring_refusal() is None else "pread")


def _alone(probe: Any, kind: str, size: str, depth: int, repeats: int, seconds: float) -> dict[str, Any]:
    from workbench.analysis.storage import median_of, spread_of
    from workbench.gates.a_storage_cells import Cell

    runs = [probe.measure(Cell(reader=kind, size=size, depth=depth), seconds) for _ in range(repeats)]
    shown = ("bandwidth_gbps", "reads_per_s", "p50_us", "p99_us", "cpu_us_per_read")
    medians = {name: median_of([run[name] for run in runs]).value for name in shown}
    spread = spread_of([run["bandwidth_gbps"] for run in runs])
    return {"size": size, "reader": kind, "depth": depth, "runs": repeats, **medians, "spread": spread}


def _batch_alone(probe: Any, kind: str, pages: int, repeats: int) -> dict[str, Any]:
    from workbench.gates.a_storage_fio import read_batch

    batches = [read_batch(probe, kind, pages, _BATCH_DEPTH) for _ in range(repeats)]
    names = ("submit_us_per_page", "cpu_us_per_page", "user_us_per_page")
    medians = {name: float(np.median([getattr(batch, name) for batch in batches])) for name in names}
    rate = float(np.median([batch.rate.reads_per_s for batch in batches]))
    return {"pages": pages, "reader": kind, "depth": _BATCH_DEPTH, "runs": repeats, "reads_per_s": rate, **medians}


def _show(rows: list[dict[str, Any]], batch: list[dict[str, Any]], tool: str, *, json: bool) -> None:
    if json:
        print_json("bench_io", {"evidence": "physical", "against": tool or None, "rows": rows, "batch": batch})
        return
    print_table(rows, f"Uncached reads{f' against {tool}' if tool else ''} (physical)")
    if batch:
        print_table(batch, "Pages in one batch (physical)")
