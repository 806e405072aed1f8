"""Raw events of a run: one wide parquet table. Times are int64 monotonic nanoseconds of the process that made them."""

import shutil
import time
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from workbench.errors import BadInput
from workbench.schema.parquet import parquet_metadata, read_parquet, scan_parquet, write_parquet

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


_NUMBER = "number"
"""Column with an event's number in the log, to restore the order when frames are concatenated."""
CHUNK_EVENTS = 1 << 15
"""Events in memory from which a chunk is written: about 25 MiB of them, 350 tokens of profile mini."""
LOG_WRITTEN = "log_written"
"""Name of the mark of a chunk's writing; its `duration_ns` ends at `t_ns`, its value counts the chunk's events."""
TEXT_SHOWN = "text_shown"
"""Name of the mark of a token's decoding into text and of showing it; its `duration_ns` ends at `t_ns`."""
PAUSES = (LOG_WRITTEN, TEXT_SHOWN)
"""Marks between passes whose time rates leave out: it is neither the model's nor the disk's."""
_METADATA = {"events_version": str(EVENTS_VERSION)}
PASS_COLUMNS = ("t_ns", "kind", "request", "phase", "position", "name", "duration_ns", "committed_tokens")
"""Columns of token and mark events from which passes and their intervals follow."""
Events = pl.DataFrame | pl.LazyFrame
"""Events of a run, in memory or to be read chunk by chunk."""


class EventLog:
    """Events of a run: the latest in memory, and, in a log with a folder, earlier ones in chunk files of that folder.

    Between passes the engine calls `roll`, which writes a chunk when enough events are in memory: a run's memory does not grow
    with its length, and a killed run leaves its chunks, each whole. `write` merges them into one file.
    """

    def __init__(self, chunks: Path | None = None) -> None:
        """`chunks`: folder of the chunk files, made by the first one; None: all events stay in memory."""
        self._rows: list[dict[str, Any] | tuple[tuple[str, ...], tuple[Any, ...]]] = []
        self._chunks = chunks
        self._written: list[Path] = []

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
        self._drop_chunks()

    def roll(self) -> None:
        """Moves the events in memory to a chunk file when there are `CHUNK_EVENTS` of them.

        The time that this takes is an event of its own, `LOG_WRITTEN`: rates leave it out. Raises OSError on a full disk.
        """
        if self._chunks is None or len(self._rows) < CHUNK_EVENTS:
            return
        start_ns, count = time.monotonic_ns(), len(self._rows)
        self._write_chunk(self._chunks)
        end_ns = time.monotonic_ns()
        self.add(end_ns, "mark", name=LOG_WRITTEN, duration_ns=end_ns - start_ns, value=float(count))

    def _write_chunk(self, folder: Path) -> None:
        path = folder / f"{len(self._written):06d}.parquet"
        folder.mkdir(exist_ok=True)
        write_parquet(_frame_of(self._rows), path, _METADATA)
        self._written.append(path)
        self._rows.clear()

    def scan(self) -> pl.LazyFrame:
        """All events, those of chunk files read only where and when a query needs them."""
        latest = _frame_of(self._rows).lazy()
        return pl.concat([scan_parquet(self._written), latest]) if self._written else latest

    def frame(self) -> pl.DataFrame:
        """All events in memory. Raises BadInput on a column that the schema does not have."""
        return self.scan().collect()

    def write(self, path: Path) -> None:
        """Writes `events.parquet`, atomically, and removes the chunk files; memory holds one chunk at most."""
        if self._chunks is not None and self._written:
            self._write_chunk(self._chunks)
            write_parquet(scan_parquet(self._written), path, _METADATA)
        else:
            write_parquet(_frame_of(self._rows), path, _METADATA)
        self._drop_chunks()

    def _drop_chunks(self) -> None:
        if self._chunks is not None and self._written:
            shutil.rmtree(self._chunks)
        self._written.clear()


def _frame_of(rows: Sequence[dict[str, Any] | tuple[tuple[str, ...], tuple[Any, ...]]]) -> pl.DataFrame:
    """Events as a frame, in their order. Raises BadInput on a column that the schema does not have."""
    # events that have the same columns become a frame together: far faster than row by row
    alike: defaultdict[tuple[str, ...], tuple[list[int], list[tuple[Any, ...]]]] = defaultdict(lambda: ([], []))
    for number, row in enumerate(rows):
        columns, values = (tuple(row), tuple(row.values())) if isinstance(row, dict) else row
        numbers, valued = alike[columns]
        numbers.append(number)
        valued.append(values)
    if unknown := sorted(set().union(*alike) - EVENT_SCHEMA.keys()):
        raise BadInput(f"event column {unknown[0]!r} is not in the schema")
    frames = [pl.DataFrame(schema=EVENT_SCHEMA).with_row_index(_NUMBER)]
    for columns, (numbers, valued) in alike.items():
        data = {name: [values[index] for values in valued] for index, name in enumerate(columns)}
        frame = pl.DataFrame(data, schema={name: EVENT_SCHEMA[name] for name in columns})
        frames.append(frame.with_columns(pl.Series(_NUMBER, numbers, pl.UInt32)))
    return pl.concat(frames, how="diagonal").sort(_NUMBER).drop(_NUMBER)


def rows_of(events: Events, kinds: Sequence[str], columns: Sequence[str]) -> pl.DataFrame:
    """Events of `kinds`, only `columns` of them, strings as categories: what a long run's analysis can hold in memory."""
    rows = events.lazy().filter(pl.col("kind").is_in(kinds)).select(columns)
    return rows.with_columns(pl.col(pl.String).cast(pl.Categorical)).collect()


def chunk_folder(path: Path) -> Path:
    """Folder of the chunk files that become the events file `path`."""
    return path.with_suffix("")


def events_version(path: Path) -> str | None:
    """The events version in the metadata of a parquet file; None: the metadata has none."""
    return parquet_metadata(path).get("events_version")


def read_events(path: Path) -> pl.DataFrame:
    """Events of a run in `EVENT_SCHEMA`; columns that the file's version lacked are null, except `committed_tokens`.

    Without the file, as a killed run leaves it, the events of its chunk files. Raises BadInput when the file has an unknown
    version or columns other than its version's.
    """
    chunks = sorted(chunk_folder(path).glob("*.parquet")) if not path.exists() else []
    if chunks:
        return pl.concat([read_events(chunk) for chunk in chunks])
    version = events_version(path)
    if version not in _SCHEMAS:
        raise BadInput(f"{path}: events version {version}, this workbench reads {' and '.join(_SCHEMAS)}")
    frame = read_parquet(path)
    if dict(frame.schema) != _SCHEMAS[version]:
        raise BadInput(f"{path}: columns differ from events version {version}")
    return frame if version == str(EVENTS_VERSION) else _from_version_1(frame)


def _from_version_1(frame: pl.DataFrame) -> pl.DataFrame:
    """Events of version 1 in `EVENT_SCHEMA`; `committed_tokens` is `value`, where version 1 had a pass's tokens."""
    missing = {name: pl.lit(None, EVENT_SCHEMA[name]) for name in _SINCE_VERSION_2}
    missing["committed_tokens"] = pl.when(kind="token").then(pl.col("value").cast(pl.Int32))
    return frame.with_columns(**missing).select(list(EVENT_SCHEMA))
