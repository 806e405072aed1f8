"""Raw events of a run: one wide parquet table. Times are int64 monotonic nanoseconds of the process that made them."""

import functools
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import polars as pl

from workbench.errors import BadInput
from workbench.schema.parquet import write_parquet

EVENTS_VERSION = 1

EVENT_SCHEMA: dict[str, Any] = {
    "t_ns": pl.Int64,
    # token: a step was committed (value: tokens in it) | demand: a layer or token block asked for identities
    # ticket: a read ended (value: read calls it took, a part of one where several shared it) | wait: compute stood still
    # readback: the host waited for router ids | evaluate: the host waited for other compute | route: a layer's choice
    # wave: gate_up or down of `consumed` records came `duration_ns` after the demand | stage | mark
    "kind": pl.String,
    "request": pl.Int32,
    # prefill | decode | verify
    "phase": pl.String,
    "position": pl.Int32,
    "layer": pl.Int16,
    # expert | ple
    "store": pl.String,
    # of a ticket: record key or page; of a demand and a route: fingerprint of the record keys
    "identity": pl.Int64,
    # exact | predicted
    "intent": pl.String,
    # hit | joined | read | used_on_time | used_late | unused | failed
    "outcome": pl.String,
    # stage or mark name
    "name": pl.String,
    "submit_ns": pl.Int64,
    "ready_ns": pl.Int64,
    "seen_ns": pl.Int64,
    # of a ticket: when compute first asked for it or was expected to, whichever was earlier
    "deadline_ns": pl.Int64,
    "duration_ns": pl.Int64,
    "logical_bytes": pl.Int64,
    "physical_bytes": pl.Int64,
    "queue_depth": pl.Int32,
    # of a demand: identities found, in flight already, to be read
    "hits": pl.Int32,
    "joined": pl.Int32,
    "misses": pl.Int32,
    # of a wait: tickets it stood still for, and tickets that the stage behind it consumes
    "guarded": pl.Int32,
    "consumed": pl.Int32,
    "value": pl.Float64,
}
"""Columns of `events.parquet`; a column that does not apply to an event is null."""


def fingerprint(keys: Iterable[int]) -> int:
    """Of a set of keys: the sum of their CRC-32s. Order does not matter, and fingerprints of disjoint sets add up."""
    return sum(_key_crc(key) for key in keys)


@functools.cache
def _key_crc(key: int) -> int:
    return zlib.crc32(key.to_bytes(8, "little"))


class EventLog:
    """Collects events in memory (nothing is written during a timed region) and writes them once."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, t_ns: int, kind: str, **columns: Any) -> None:
        """Appends one event; `columns` are names of `EVENT_SCHEMA`."""
        columns["t_ns"] = t_ns
        columns["kind"] = kind
        self._rows.append(columns)

    def clear(self) -> None:
        """Forgets everything so far (a warm-up is not part of a run)."""
        self._rows.clear()

    def frame(self) -> pl.DataFrame:
        """All events as a frame. Raises BadInput on a column that the schema does not have."""
        names = {name for row in self._rows for name in row}
        if unknown := sorted(names - EVENT_SCHEMA.keys()):
            raise BadInput(f"event column {unknown[0]!r} is not in the schema")
        return pl.DataFrame(self._rows, schema=EVENT_SCHEMA)

    def write(self, path: Path) -> None:
        """Writes `events.parquet`, atomically."""
        write_parquet(self.frame(), path, {"events_version": str(EVENTS_VERSION)})


def read_events(path: Path) -> pl.DataFrame:
    """Events of a run. Raises BadInput when the file has another version or other columns."""
    version = pl.read_parquet_metadata(path).get("events_version")
    if version != str(EVENTS_VERSION):
        raise BadInput(f"{path}: events version {version}, this workbench reads {EVENTS_VERSION}")
    frame = pl.read_parquet(path)
    if dict(frame.schema) != EVENT_SCHEMA:
        raise BadInput(f"{path}: columns differ from events version {EVENTS_VERSION}")
    return frame
