"""Gate A's envelope of this disk: made from the gate's runs, and looked up by profile, machine and filesystem."""

from pathlib import Path
from typing import Any

import polars as pl

from workbench.analysis.storage import Choice, select, spread_of
from workbench.errors import BadInput
from workbench.hardware import filesystem_identity, machine
from workbench.paths import store_folder
from workbench.schema import RunFolder, Status, list_runs
from workbench.schema.envelopes import Envelope, Measured, Recommendation
from workbench.units import GB, NS_PER_S, NS_PER_US

ENVELOPE_NAME = "envelope.json"


def recommend(runs: pl.DataFrame, choice: Choice, size: str, read_bytes: int) -> Recommendation:
    """The recommendation of a reader and depth, with medians of its cold runs without a load; `read_bytes` is one read's size."""
    chosen = select(runs, reader=choice.reader, depth=choice.depth, size=size, cache="cold", beside="idle")
    middle = {name: _median(chosen, name) for name in ("bandwidth_gbps", "reads_per_s", "p50_us")}
    spread = spread_of(chosen["bandwidth_gbps"].to_list())
    return Recommendation(reader=choice.reader, depth=choice.depth, read_bytes=read_bytes, spread=max(spread, 0.0), **middle)


def envelope_of(runs: pl.DataFrame, *, name: str, source: str, page: str, large: str, measured: Measured) -> Envelope:
    """The disk's four figures, from cold runs of the recommended readers without a load.

    Args:
        runs: all runs.
        name: name of the envelope.
        source: the run that measured the envelope.
        page: size whose reads give latency and reads per second.
        large: size whose single read gives the transfer rate of one read alone.
        measured: profile, machine and filesystem that the envelope is valid for, and the recommended readers.
    """
    cold = select(runs, cache="cold", beside="idle")
    own = cold.filter(pl.col("reader").is_in([measured.expert.reader, measured.ple.reader]))
    middle = own.group_by("size", "depth", "reader").agg(pl.col("bandwidth_gbps", "reads_per_s", "p50_us").median())
    alone = middle.filter(depth=1).group_by("size").agg(pl.col("p50_us").min())
    page_us, large_us = (alone.filter(size=size)["p50_us"][0] for size in (page, large))
    page_bytes, large_bytes = (_read_bytes(own, size) for size in (page, large))
    stream_bytes_per_us = (large_bytes - page_bytes) / max(large_us - page_us, 1e-3)
    bandwidth = max(middle["bandwidth_gbps"])
    host = machine()
    return Envelope(
        name=name,
        device=f"{host.cpu}, {host.num_cores} cores, {host.system}; {measured.filesystem}",
        source=source,
        latency_us=max(page_us - page_bytes / stream_bytes_per_us, 0.1),
        stream_gbps=min(stream_bytes_per_us * NS_PER_S / NS_PER_US / GB, bandwidth),
        bandwidth_gbps=bandwidth,
        iops=max(middle["reads_per_s"]),
        notes=f"Medians of cold reads. {page} and {large} alone give latency and stream; the best cells bandwidth and reads/s.",
        measured=measured,
    )


def latest_envelope(root: Path, profile: str) -> Envelope | None:
    """The newest envelope of a full, quiet Gate A run on this profile, machine and store's filesystem; None without one."""
    filesystem = filesystem_identity(store_folder(profile))
    for folder in reversed(list(list_runs(root, "gate_a"))):
        envelope = _usable(folder)
        if envelope is None or (found := envelope.measured) is None:
            continue
        if found.quiet and (found.profile, found.machine, found.filesystem) == (profile, machine().digest, filesystem):
            return envelope
    return None


def _usable(folder: RunFolder) -> Envelope | None:
    path = folder.artifacts / ENVELOPE_NAME
    if not path.exists() or folder.environment["tags"].get("smoke") == "true" or folder.status is not Status.FINISHED:
        return None
    verdict = folder.result.verdict if folder.result else None
    if verdict is None or any(clause.code == "A.cold" and clause.outcome != "pass" for clause in verdict.criteria):
        return None
    try:
        return Envelope.from_json(path)
    except BadInput:
        return None


def _median(runs: pl.DataFrame, name: str) -> float:
    value: Any = runs[name].median()
    return float(value)


def _read_bytes(runs: pl.DataFrame, size: str) -> float:
    chosen = select(runs, size=size)
    return int(chosen["physical_bytes"].sum()) / int(chosen["reads"].sum())
