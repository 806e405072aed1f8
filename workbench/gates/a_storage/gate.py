"""Gate A: what does this disk give, to which reader, at which size and depth, cold and warm, alone and beside compute?

Physical: the disk of the profile's store, by a file of Gate A's own that is laid out in the profile's sizes. Thresholds are
pre-registered in `StorageConfig`. The envelope it writes is what bounds, simulations and paced runs use.
"""

import time
from collections.abc import Mapping

import polars as pl

from workbench.abba.power import power_state
from workbench.abba.records import WatchRecord
from workbench.abba.watch import read_machine, summarise
from workbench.analysis import storage as tables
from workbench.analysis.storage_envelope import ENVELOPE_NAME, envelope_of, latest_envelope, recommend
from workbench.gates.a_storage.cells import BUFFERED, MMAP, PAGE, PREAD, RECORD, SEQUENTIAL, URING, Layout
from workbench.gates.a_storage.config import StorageConfig
from workbench.gates.a_storage.evidence import made_figures, made_tables, metrics_of, shown_tables
from workbench.gates.a_storage.file import probe_file
from workbench.gates.a_storage.probe import Probe, missing_readers
from workbench.gates.a_storage.verdict import Measures, conditions_of, criteria_of, is_quiet, limits_of, measure
from workbench.gates.a_storage.walk import Choices, Walk
from workbench.gates.base import Findings, Gate
from workbench.gates.shared.files import save_figures, save_tables
from workbench.gates.traces import profile_geometry
from workbench.hardware import filesystem_identity, machine
from workbench.paths import store_folder
from workbench.progress import say
from workbench.schema import Evidence, RunFolder
from workbench.schema.envelopes import Envelope, Measured
from workbench.schema.results import write_json
from workbench.units import KIB, MIB, NS_PER_S, format_bytes


def _run(config: StorageConfig, folder: RunFolder) -> Findings:
    place = store_folder(config.profile).parent
    layout = Layout.of(profile_geometry(config.profile))
    plan = config.effective
    say(
        f"gate A: a probe file of {format_bytes(plan.file_bytes)} in {place}" + ("" if plan.keep_file else ", removed afterwards")
    )
    before, power = read_machine(None), power_state()
    with probe_file(place, plan.file_bytes, seed=plan.seed, keep=plan.keep_file) as path:
        missing = missing_readers(path)
        readers = [name for name in (URING, PREAD, BUFFERED, MMAP) if name not in missing]
        probe = Probe.on(path, layout, plan.in_flight_bytes, plan.seed)
        end_s = time.monotonic() + plan.max_seconds
        standing = _standing(folder, config.profile, layout)
        walk = Walk(plan=plan, probe=probe, readers=readers, end_s=end_s, started=_phase, standing=standing)
        try:
            choices = walk.go()
        finally:
            _save_runs(walk, folder)
    watch = summarise([before, read_machine(None)], power, power_state())
    return _findings(config, folder, walk, choices, watch, missing)


def _standing(folder: RunFolder, profile: str, layout: Layout) -> dict[str, tables.Choice]:
    """Reader and depth, by size, that the newest full run recommended for reads of these sizes."""
    envelope = latest_envelope(folder.path.parents[1], profile)
    if envelope is None or (before := envelope.measured) is None:
        return {}
    found = {RECORD: before.expert, PAGE: before.ple}
    same = {size: each for size, each in found.items() if each.read_bytes == layout.read_bytes(size)}
    return {size: tables.Choice(reader=each.reader, depth=each.depth) for size, each in same.items()}


def _phase(name: str) -> None:
    say(f"gate A: {name}")


def _save_runs(walk: Walk, folder: RunFolder) -> None:
    """Saves every run and pass so far as tables, runs as events too; also when the walk was interrupted."""
    save_tables({"runs": walk.runs, "passes": pl.DataFrame(walk.passes)}, folder.artifacts)
    for row in walk.rows:
        folder.events.add(
            row["start_ns"],
            "mark",
            store="ple" if row["size"].startswith("page") else "expert",
            name=f"{row['phase']} {row['round']}: {', '.join(str(row[part]) for part in tables.CELL)}",
            submit_ns=row["start_ns"],
            duration_ns=int(row["seconds"] * NS_PER_S),
            logical_bytes=row["logical_bytes"],
            physical_bytes=row["physical_bytes"],
            queue_depth=row["depth"],
            value=row["bandwidth_gbps"],
        )


def _findings(
    config: StorageConfig, folder: RunFolder, walk: Walk, choices: Choices, watch: WatchRecord, missing: Mapping[str, str]
) -> Findings:
    runs, passes = walk.runs, pl.DataFrame(walk.passes)
    found = measure(runs, passes, choices)
    quiet = is_quiet(config, watch)
    envelope = _envelope(config, folder, walk, choices, found, quiet=quiet)
    write_json(folder.artifacts / ENVELOPE_NAME, envelope.model_dump(mode="json"))
    made = made_tables(runs, passes, envelope)
    save_tables(made, folder.artifacts)
    save_figures(made_figures(made, f"{config.profile}, {format_bytes(config.file_bytes)} file"), folder.artifacts)
    filesystem = filesystem_identity(store_folder(config.profile))
    return Findings(
        criteria=criteria_of(found, config, quiet=quiet),
        summary=_summary(envelope, found),
        conditions=[*conditions_of(config, filesystem, missing), *_against_before(walk.standing, choices)],
        limits=limits_of(found, config, watch, walk.cut),
        enables=("bounds, simulations and paced runs use this envelope",),
        metrics=metrics_of(runs, choices, found.slowdown.value),
        tables=shown_tables(made, watch),
        tags={"filesystem": filesystem, "expert": _words(choices.expert), "ple": _words(choices.ple)},
    )


def _envelope(
    config: StorageConfig, folder: RunFolder, walk: Walk, choices: Choices, found: Measures, *, quiet: bool
) -> Envelope:
    layout, runs = walk.probe.layout, walk.runs
    measured = Measured(
        profile=config.profile,
        machine=machine().digest,
        filesystem=filesystem_identity(store_folder(config.profile)),
        unix_s=folder.environment["started_unix_s"],
        quiet=quiet,
        expert=recommend(runs, choices.expert, RECORD, layout.read_bytes(RECORD)),
        ple=recommend(runs, choices.ple, PAGE, 4 * KIB),
        sequential_from=found.crossover,
        split_components=found.split_ratio.low >= config.split_ratio,
    )
    source = f"Gate A, run {folder.path.name}"
    # large reads show the bandwidth; small ones mostly the latency
    large = max((RECORD, *config.sizes), key=layout.read_bytes)
    return envelope_of(
        runs, name=f"{config.profile}-{folder.path.name}", source=source, page=PAGE, large=large, measured=measured
    )


def _against_before(standing: Mapping[str, tables.Choice], choices: Choices) -> list[str]:
    """Conditions on whether the recommendation of the run before still stands: it does while no other is better."""
    now = {RECORD: choices.expert, PAGE: choices.ple}
    return [
        f"{size}: the run before recommended {_words(before)}; "
        + ("it stands, as good as any here" if now[size] == before else f"no longer as good as {_words(now[size])}")
        for size, before in standing.items()
    ]


def _words(choice: tables.Choice) -> str:
    return f"{choice.reader} at depth {choice.depth}"


def _summary(envelope: Envelope, found: Measures) -> str:
    measured = envelope.measured
    assert measured is not None
    expert, ple = measured.expert, measured.ple
    never = found.crossover > 1
    return (
        f"Records: {expert.reader} at depth {expert.depth}, {expert.bandwidth_gbps:.2f} GB/s (±{expert.spread:.0%}). "
        f"Pages: {ple.reader} at depth {ple.depth}, {ple.reads_per_s:,.0f} reads/s (±{ple.spread:.0%}). "
        f"Components read apart have {found.split_ratio.value:.0%} of whole records' bandwidth; "
        + (
            "reading selected records is faster at every share of a layer."
            if never
            else f"reading a layer as one extent is faster when at least {found.crossover:.0%} of it is used."
        )
    )


GATE = Gate(
    name="a_storage",
    question="What does this disk give, to which reader, at which size and depth?",
    evidence=Evidence.PHYSICAL,
    config=StorageConfig,
    smoke_settings={
        "file_bytes": 64 * MIB,
        "in_flight_bytes": 24 * MIB,
        "sizes": (PAGE, RECORD, SEQUENTIAL),
        "depths": (1, 8),
        "seconds": 0.02,
        "rounds": 1,
        "close_rounds": 2,
        "max_seconds": 10.0,
    },
    module=__name__,
    shown={
        "recommended": "Reader and depth for each class (physical)",
        "readers": "Best of each reader and size, cold, alone (physical)",
        "beside": "Beside compute and a busy interpreter (physical)",
        "split": "Whole records against gate+up and down apart, equal bytes in flight (physical)",
        "crossover": "Selected records of a layer against one extent with the whole layer (physical)",
    },
    prepare=lambda _: None,
    inputs=lambda config: {
        "filesystem": filesystem_identity(store_folder(config.profile)),
        "layout": str(Layout.of(profile_geometry(config.profile))),
    },
    run=_run,
)
"""Gate A, as the runner knows it."""
