"""Spans of one token in the trace-event format that Perfetto (ui.perfetto.dev) and chrome://tracing open.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU: a complete event (`ph` X) has `name`, `cat`,
`ts` and `dur` in microseconds, `pid` and `tid`; metadata events (`ph` M) name and order processes and threads.
"""

from collections.abc import Mapping
from typing import Any

import polars as pl

from workbench.analysis.timeline import EVALUATE, READBACK, READS, STAGE, TOKEN, WAIT
from workbench.units import NS_PER_US

_PID = 1
_TRACKS = (TOKEN, WAIT, READBACK, EVALUATE, STAGE, *READS.values())
_ARGUMENTS = ("layer", "intent", "outcome", "physical_bytes")


def trace_document(spans: pl.DataFrame, about: Mapping[str, str]) -> dict[str, Any]:
    """A document with one thread per track, or one per lane of a track that has lanes; time 0 is the token's start.

    `about` describes the run: its values name the process, and all of it is in `otherData`.
    """
    spans = spans.with_columns(pl.col("lane").fill_null(0))
    order = pl.col("track").replace_strict({track: i for i, track in enumerate(_TRACKS)}, return_dtype=pl.Int32)
    threads = spans.select("track", "lane").unique().sort(order, "lane").rows()
    ids = {thread: number for number, thread in enumerate(threads, start=1)}
    events = [_metadata("process_name", 0, name=", ".join(about.values()))]
    for (track, lane), number in ids.items():
        several = sum(other == track for other, _ in threads) > 1
        events.append(_metadata("thread_name", number, name=f"{track} {lane + 1}" if several else track))
        events.append(_metadata("thread_sort_index", number, sort_index=number))
    zero_ns = spans.filter(track=TOKEN)["start_ns"][0]
    # a viewer nests spans of one thread by their order: whole tickets go before their phases
    for span in spans.sort("start_ns", pl.col("end_ns") - pl.col("start_ns"), descending=[False, True]).iter_rows(named=True):
        events.append(_complete(span, ids[span["track"], span["lane"]], zero_ns))
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": dict(about)}


def _metadata(name: str, thread: int, /, **arguments: Any) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": _PID, "tid": thread, "ts": 0, "args": arguments}


def _complete(span: Mapping[str, Any], thread: int, zero_ns: int) -> dict[str, Any]:
    arguments = {name: span[name] for name in _ARGUMENTS if span[name] is not None}
    return {
        "ph": "X",
        "name": span["phase"] or span["name"],
        "cat": span["track"],
        "ts": (span["start_ns"] - zero_ns) / NS_PER_US,
        "dur": (span["end_ns"] - span["start_ns"]) / NS_PER_US,
        "pid": _PID,
        "tid": thread,
        "args": arguments,
    }
