import errno
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.errors import BadInput
from workbench.schema import EVENT_SCHEMA, EventLog, fingerprint, read_events
from workbench.schema import events as events_module
from workbench.schema.events import LOG_WRITTEN, rows_of

GOLDEN_1 = Path(__file__).parents[1] / "data" / "version_1" / "golden_events.parquet"
NEW = {
    "committed_tokens", "digest", "generation", "owner", "token_mask", "confidence", "priority", "ended_priority", "issue_ns",
    "asked_ns", "expected_ns", "slot", "leases", "completion", "predictor",
    "refused", "budget_bytes", "budget_slots", "budget_reads",
}  # fmt: skip
"""Columns that version 1 lacked."""


def test_events_come_back_as_they_were_added(tmp_path):
    log = EventLog()
    log.add(2**62, "token", request=0, phase="decode", position=5)
    log.add(7, "stage", layer=3, name="gdn", duration_ns=10, value=0.5)
    assert log.frame().height == 2
    log.write(tmp_path / "events.parquet")
    frame = read_events(tmp_path / "events.parquet")
    assert dict(frame.schema) == EVENT_SCHEMA
    assert frame.select("t_ns", "kind", "position", "layer", "value").rows() == [
        (2**62, "token", 5, None, None),
        (7, "stage", None, 3, 0.5),
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["events.parquet"]


def test_no_events_are_a_table_too(tmp_path):
    EventLog().write(tmp_path / "events.parquet")
    assert read_events(tmp_path / "events.parquet").height == 0


def test_a_column_outside_the_schema_is_refused():
    log = EventLog()
    log.add(0, "token", speed=3)
    with pytest.raises(BadInput, match="'speed' is not in the schema"):
        log.frame()


def test_a_ready_row_is_an_event_like_any_other(tmp_path):
    added, appended = EventLog(), EventLog()
    columns = {"priority": 1, "ended_priority": 0, "token_mask": -1, "confidence": 0.25, "predictor": "oracle", "digest": "ab"}
    added.add(5, "ticket", **columns)
    appended.append({"t_ns": 5, "kind": "ticket", **columns})
    assert added.frame().equals(appended.frame())
    appended.write(tmp_path / "events.parquet")
    assert read_events(tmp_path / "events.parquet").equals(added.frame())


def test_version_1_is_read_with_the_new_columns_empty_but_for_committed_tokens():
    old, events = pl.read_parquet(GOLDEN_1), read_events(GOLDEN_1)
    assert set(EVENT_SCHEMA) - set(old.columns) == NEW
    assert dict(events.schema) == EVENT_SCHEMA
    assert events.columns == list(EVENT_SCHEMA)
    assert events.select(old.columns).equals(old)
    assert events["committed_tokens"].to_list() == [None, 1]
    assert {name: events[name].null_count() for name in NEW - {"committed_tokens"}} == dict.fromkeys(
        NEW - {"committed_tokens"}, 2
    )


def test_columns_of_another_version_are_refused(tmp_path):
    path = tmp_path / "events.parquet"
    for version, columns in (("1", EVENT_SCHEMA), ("2", pl.read_parquet_schema(GOLDEN_1))):
        pl.DataFrame(schema=columns).write_parquet(path, metadata={"events_version": version})
        with pytest.raises(BadInput, match=f"columns differ from events version {version}"):
            read_events(path)


def test_cleared_events_are_gone():
    log = EventLog()
    log.add(0, "mark", name="warm-up")
    log.clear()
    assert log.frame().height == 0


def test_other_columns_are_refused(tmp_path):
    path = tmp_path / "events.parquet"
    pl.DataFrame({"t_ns": [1]}).write_parquet(path, metadata={"events_version": "1"})
    with pytest.raises(BadInput, match="columns differ"):
        read_events(path)


@given(st.sets(st.integers(0, 2**40), max_size=20), st.data())
def test_fingerprints_ignore_order_and_add_up(keys, data):
    shuffled = data.draw(st.permutations(sorted(keys)))
    half = set(shuffled[: len(shuffled) // 2])
    assert fingerprint(shuffled) == fingerprint(keys) == fingerprint(half) + fingerprint(keys - half)


def rolled(folder, monkeypatch, count=7):
    """A log of `count` events, of which as many as possible lie in chunks of three."""
    monkeypatch.setattr(events_module, "CHUNK_EVENTS", 3)
    log = EventLog(folder)
    for number in range(count):
        log.add(number, "mark", name="step", value=float(number), layer=number % 2 or None)
        log.roll()
    return log


def steps_of(frame):
    return frame.filter(name="step")["value"].to_list()


def test_a_log_that_rolls_holds_the_same_events_in_the_same_order(tmp_path, monkeypatch):
    log = rolled(tmp_path / "events", monkeypatch)
    # each writing is an event too, the first of the next chunk
    assert sorted(path.name for path in (tmp_path / "events").iterdir()) == [f"{n:06d}.parquet" for n in range(3)]
    assert steps_of(log.frame()) == steps_of(log.scan().collect()) == [0, 1, 2, 3, 4, 5, 6]
    assert log.frame().filter(name=LOG_WRITTEN)["value"].to_list() == [3, 3, 3]
    log.write(tmp_path / "events.parquet")
    assert steps_of(read_events(tmp_path / "events.parquet")) == [0, 1, 2, 3, 4, 5, 6]
    assert [path.name for path in tmp_path.iterdir()] == ["events.parquet"]


def test_chunks_of_a_killed_run_are_its_events(tmp_path, monkeypatch):
    rolled(tmp_path / "events", monkeypatch)
    (tmp_path / "events" / "000003.parquet.part").write_bytes(b"torn")
    assert steps_of(read_events(tmp_path / "events.parquet")) == [0, 1, 2, 3, 4, 5, 6][: 3 + 2 + 2]


def test_a_cleared_log_leaves_no_chunks(tmp_path, monkeypatch):
    log = rolled(tmp_path / "events", monkeypatch)
    log.clear()
    assert log.frame().height == 0
    assert not list(tmp_path.iterdir())


def test_a_full_disk_keeps_the_events_in_memory(tmp_path, monkeypatch):
    log = rolled(tmp_path / "events", monkeypatch, count=2)

    def full(path, content):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    log.add(2, "mark", name="step", value=2.0)
    with monkeypatch.context() as patch:
        patch.setattr("workbench.schema.parquet.write_atomically", full)
        with pytest.raises(OSError, match="No space left"):
            log.roll()
    log.write(tmp_path / "events.parquet")
    assert steps_of(read_events(tmp_path / "events.parquet")) == [0, 1, 2]


def test_rows_of_some_kinds_and_columns_are_the_same_in_memory_and_on_disk(tmp_path, monkeypatch):
    log = rolled(tmp_path / "events", monkeypatch)
    log.add(9, "token", phase="decode")
    wanted = rows_of(log.frame(), ["mark"], ("t_ns", "name"))
    assert rows_of(log.scan(), ["mark"], ("t_ns", "name")).equals(wanted)
    assert wanted.filter(name="step").height == 7
