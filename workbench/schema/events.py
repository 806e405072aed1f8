"""Raw events of a run: one wide parquet table. Times are int64 monotonic nanoseconds of the process that made them."""

import zlib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import polars as pl

from workbench.errors import BadInput
from workbench.schema.parquet import write_parquet

EVENTS_VERSION = 2

EVENT_SCHEMA: dict[str, Any] = {
    "t_ns": pl.Int64,
    # token: a pass committed `committed_tokens` tokens | demand: a layer or token block asked for identities
    # ticket: a read ended (value: read calls it took, a part of one where several shared it) | wait: compute was blocked
    # readback: the host waited for router ids | evaluate: the host waited for other compute | route: the router's choice
    # wave: gate_up or down of `consumed` records was ready `duration_ns` after the demand | stage | mark
    # predict: a predictor was called (name: the predictor, value: keys it predicted, hits: of them resident, joined: in flight
    # already, misses: planned) | rejected: rows of a block were dropped after verification (position: of the first dropped
    # row, value: rows, store and logical_bytes: bytes that the dropped rows alone asked for)
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
    # stage, mark or predictor name
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
    # of a demand: identities found, in flight already, to be read; of a predict event likewise, of the predicted keys
    "hits": pl.Int32,
    "joined": pl.Int32,
    "misses": pl.Int32,
    # of a wait: tickets that compute waited for, and tickets that the stage behind the wait consumes
    "guarded": pl.Int32,
    "consumed": pl.Int32,
    "value": pl.Float64,
    # of a token event: tokens that its pass committed (the rows of its block minus the rejected ones)
    "committed_tokens": pl.Int32,
    # of a ticket: SHA-256 of its store's payload
    "digest": pl.String,
    # of a ticket: epoch of the request that planned it
    "generation": pl.Int32,
    # of a ticket: request of the first exact demand for it; null: there was none
    "owner": pl.Int32,
    # of a ticket: bit t set: token t of the block needs it; -1: a tile (chunk) of a prompt needs it
    "token_mask": pl.Int64,
    # of a ticket: probability that its predictor gave it; 1 for exact ones
    "confidence": pl.Float64,
    # of a ticket: class it was planned in, 0 to 3 (P0..P3), and class it ended in; of a predict event: its class
    "priority": pl.Int8,
    "ended_priority": pl.Int8,
    # of a ticket: when its first read was handed to the reader, and when compute first asked for it
    "issue_ns": pl.Int64,
    "asked_ns": pl.Int64,
    # of a ticket: when compute was expected to ask for it; null: it had no deadline
    "expected_ns": pl.Int64,
    # of a ticket: slot it was read into, and number of exact demands that pinned it
    "slot": pl.Int32,
    "leases": pl.Int32,
    # of a ticket: place in the order of completions
    "completion": pl.Int64,
    # of a ticket: name of the predictor that planned it
    "predictor": pl.String,
    # of a predict event: keys refused because no budget or slot was left, and the budget of its class
    "refused": pl.Int32,
    "budget_bytes": pl.Int64,
    "budget_slots": pl.Int32,
    "budget_reads": pl.Int32,
}
"""Columns of `events.parquet`; a column that does not apply to an event is null."""

_SINCE_VERSION_2 = (
    "committed_tokens", "digest", "generation", "owner", "token_mask", "confidence", "priority", "ended_priority", "issue_ns",
    "asked_ns", "expected_ns", "slot", "leases", "completion", "predictor", "refused", "budget_bytes", "budget_slots",
    "budget_reads",
)  # fmt: skip
_SCHEMAS = {
    "1": {name: dtype for name, dtype in EVENT_SCHEMA.items() if name not in _SINCE_VERSION_2},
    str(EVENTS_VERSION): EVENT_SCHEMA,
}
"""Columns by version, of those versions that `read_events` knows."""


def fingerprint(keys: Iterable[int]) -> int:
    """Fingerprint of a set of keys: the sum of their CRC-32s. Order does not matter, and disjoint sets' fingerprints add up."""
    return sum(map(_CRC_OF_KEY.__getitem__, keys))


class _CrcOfKey(dict[int, int]):
    """CRC-32 of each key, computed once."""

    def __missing__(self, key: int) -> int:
        crc = self[key] = zlib.crc32(key.to_bytes(8, "little"))
        return crc


_CRC_OF_KEY = _CrcOfKey()


_PLACE = "place"
"""Column with an event's number in the log, to restore the order when frames are concatenated."""


class EventLog:
    """Collects events in memory (nothing is written during a timed region) and writes them once."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any] | tuple[tuple[str, ...], tuple[Any, ...]]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, t_ns: int, kind: str, **columns: Any) -> None:
        """Appends one event; `columns` are names of `EVENT_SCHEMA`."""
        columns["t_ns"] = t_ns
        columns["kind"] = kind
        self._rows.append(columns)

    def append(self, row: dict[str, Any]) -> None:
        """Appends one event as a mapping with `t_ns` and `kind`, without a copy: cheaper than `add` on a hot path."""
        self._rows.append(row)

    def append_values(self, columns: tuple[str, ...], values: tuple[Any, ...]) -> None:
        """Appends one event as a tuple of column names, which many events share, and their values: cheapest for wide events."""
        self._rows.append((columns, values))

    def clear(self) -> None:
        """Drops all events so far (a warm-up is not part of a run)."""
        self._rows.clear()

    def frame(self) -> pl.DataFrame:
        """All events as a frame. Raises BadInput on a column that the schema does not have."""
        # events that have the same columns become a frame together: far faster than row by row
        alike: defaultdict[tuple[str, ...], tuple[list[int], list[tuple[Any, ...]]]] = defaultdict(lambda: ([], []))
        for place, row in enumerate(self._rows):
            columns, values = (tuple(row), tuple(row.values())) if isinstance(row, dict) else row
            places, rows = alike[columns]
            places.append(place)
            rows.append(values)
        if unknown := sorted(set().union(*alike) - EVENT_SCHEMA.keys()):
            raise BadInput(f"event column {unknown[0]!r} is not in the schema")
        frames = [pl.DataFrame(schema=EVENT_SCHEMA).with_row_index(_PLACE)]
        for columns, (places, rows) in alike.items():
            data = {name: [values[place] for values in rows] for place, name in enumerate(columns)}
            frame = pl.DataFrame(data, schema={name: EVENT_SCHEMA[name] for name in columns})
            frames.append(frame.with_columns(pl.Series(_PLACE, places, pl.UInt32)))
        return pl.concat(frames, how="diagonal").sort(_PLACE).drop(_PLACE)

    def write(self, path: Path) -> None:
        """Writes `events.parquet`, atomically."""
        write_parquet(self.frame(), path, {"events_version": str(EVENTS_VERSION)})


def events_version(path: Path) -> str | None:
    """The events version in the metadata of a parquet file; None: the metadata has none."""
    return pl.read_parquet_metadata(path).get("events_version")


def read_events(path: Path) -> pl.DataFrame:
    """Events of a run in `EVENT_SCHEMA`; columns that the file's version lacked are null, except `committed_tokens`.

    Raises BadInput when the file has an unknown version or columns other than its version's.
    """
    version = events_version(path)
    if version not in _SCHEMAS:
        raise BadInput(f"{path}: events version {version}, this workbench reads {' and '.join(_SCHEMAS)}")
    frame = pl.read_parquet(path)
    if dict(frame.schema) != _SCHEMAS[version]:
        raise BadInput(f"{path}: columns differ from events version {version}")
    return frame if version == str(EVENTS_VERSION) else _from_version_1(frame)


def _from_version_1(frame: pl.DataFrame) -> pl.DataFrame:
    """Events of version 1 in `EVENT_SCHEMA`; `committed_tokens` is `value`, where version 1 had a pass's tokens."""
    missing = {name: pl.lit(None, EVENT_SCHEMA[name]) for name in _SINCE_VERSION_2}
    missing["committed_tokens"] = pl.when(kind="token").then(pl.col("value").cast(pl.Int32))
    return frame.with_columns(**missing).select(list(EVENT_SCHEMA))
