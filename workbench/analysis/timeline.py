"""One generated token as spans on tracks: every ticket, wait, read-back and stage; and exposed waits by layer and class.

The tokens that one pass commits share the spans of the pass, and each has an equal part of its time and waits.

Times of tickets, waits and read-backs are the timed run's. Stages are those of its attribution run, if it has one: between two
read-backs they are scaled to fill the time outside exposed waits, so their order is measured and their lengths are fitted.
"""

import heapq
from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl

from workbench.errors import BadInput
from workbench.schema.generated import generated, generated_tokens, passes
from workbench.units import NS_PER_MS

TOKEN, WAIT, READBACK, EVALUATE, STAGE = "token", "exposed wait", "read-back", "host waits for compute", "stages"
READS = {"expert": "expert reads", "ple": "n-gram reads"}
"""Track of each class of reads."""
QUEUED, IN_FLIGHT, UNSEEN = "queued", "in flight", "ready, not seen"
"""Phases of a ticket: until its submission to the reader, until its last byte is read, until the compute thread sees it."""
SPAN_SCHEMA: dict[str, Any] = {
    "track": pl.String,
    # row of the span within a track whose spans overlap
    "lane": pl.Int32,
    "name": pl.String,
    # phase of a ticket: queued | in flight | ready, not seen; null for a whole ticket and for spans of other tracks
    "phase": pl.String,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "layer": pl.Int16,
    "store": pl.String,
    "intent": pl.String,
    "outcome": pl.String,
    "physical_bytes": pl.Int64,
}
_BEHIND, _BEFORE = ("shared", "gate_up", "down"), ("ple", "gdn", "qsa", "router")
_OUTSIDE = -1
_PAGE_BITS = 40


def numbered_passes(events: pl.DataFrame) -> pl.DataFrame:
    """One row per generating pass: its first token's `number` (from 1 on), `committed_tokens`, `start_ns` and `end_ns`.

    A pass starts at the end of the pass before it in its turn, a prompt's pass included.
    """
    own_start = pl.col("end_ns") - pl.col("duration_ns")
    before = pl.col("end_ns").shift(1).over("request", "turn_ns")
    ended = generated(passes(events).with_columns(start_ns=before.fill_null(own_start)))
    number = pl.col("committed_tokens").cast(pl.Int64).cum_sum() - pl.col("committed_tokens") + 1
    return ended.select("request", "position", "start_ns", "committed_tokens", "end_ns", number=number)


def choose_pass(numbered: pl.DataFrame, number: int | None) -> dict[str, Any]:
    """The row of the pass that committed token `number`; None: the pass of a token of median time.

    Raises BadInput when there is no such token.
    """
    if numbered.is_empty():
        raise BadInput("the run has decoded nothing")
    last = pl.col("number") + pl.col("committed_tokens") - 1
    if number is not None:
        chosen = numbered.filter(pl.col("number") <= number, last >= number)
        if chosen.is_empty():
            raise BadInput(f"no token {number}: the run has decoded tokens 1 to {numbered.select(last).item(-1, 0)}")
        return chosen.row(0, named=True)
    by_time = numbered.sort((pl.col("end_ns") - pl.col("start_ns")) / pl.col("committed_tokens"), "number")
    so_far = by_time["committed_tokens"].cum_sum()
    return by_time.filter(so_far >= (so_far[-1] + 1) // 2).row(0, named=True)


def token_words(number: int, committed_tokens: int) -> str:
    """The tokens that a pass committed, `number` the first of them, in words: `token 3` or `tokens 4 to 6`."""
    return f"token {number}" if committed_tokens == 1 else f"tokens {number} to {number + committed_tokens - 1}"


def token_spans(events: pl.DataFrame, chosen: dict[str, Any], num_experts: int) -> pl.DataFrame:
    """Spans of all events during the pass `chosen` (a row of `numbered_passes`), in `SPAN_SCHEMA`."""
    timed = events.filter(pl.col("phase").ne_missing("attribution"))
    inside = timed.filter(pl.col("t_ns").is_between(chosen["start_ns"], chosen["end_ns"], closed="left"))
    waits, readbacks, evaluations = (inside.filter(kind=kind).sort("t_ns") for kind in ("wait", "readback", "evaluate"))
    words = token_words(chosen["number"], chosen["committed_tokens"])
    whole = {"track": TOKEN, "name": words, "start_ns": chosen["start_ns"], "end_ns": chosen["end_ns"]}
    rows = [
        whole,
        *_plain(waits, WAIT),
        *_plain(readbacks, READBACK),
        *_plain(evaluations, EVALUATE),
        *_stages(events.filter(kind="stage"), chosen, waits, readbacks),
        *(row for store in READS for row in _reads(timed, chosen, store, num_experts)),
    ]
    return pl.DataFrame(rows, schema=SPAN_SCHEMA)


def exposed_waits(events: pl.DataFrame, chosen: dict[str, Any] | None = None) -> pl.DataFrame:
    """Exposed waits by layer and class: their number and milliseconds per token, of one pass or of all generating ones."""
    waits = generated(events.filter(kind="wait"))
    if chosen is not None:
        waits = waits.filter(pl.col("request").eq_missing(chosen["request"]))
        waits = waits.filter(pl.col("t_ns").is_between(chosen["start_ns"], chosen["end_ns"], closed="left"))
    count = max(generated_tokens(events), 1) if chosen is None else chosen["committed_tokens"]
    total_ms = waits["duration_ns"].sum() / NS_PER_MS
    grouped = waits.group_by("layer", "store").agg(
        waits=pl.len() / count,
        wait_ms=pl.col("duration_ns").sum() / NS_PER_MS / count,
        guarded=pl.col("guarded").sum() / count,
    )
    return grouped.with_columns(share=pl.col("wait_ms") * count / (total_ms or 1.0)).sort("layer", "store")


def _plain(events: pl.DataFrame, track: str) -> Iterator[dict[str, Any]]:
    for event in events.iter_rows(named=True):
        where = "whole pass" if event["layer"] is None else f"layer {event['layer']}"
        yield {
            "track": track,
            "name": f"{where}, {READS[event['store']]}" if event["store"] else where,
            "start_ns": event["t_ns"],
            "end_ns": event["t_ns"] + event["duration_ns"],
            "layer": event["layer"],
            "store": event["store"],
        }


def _reads(events: pl.DataFrame, chosen: dict[str, Any], store: str, num_experts: int) -> Iterator[dict[str, Any]]:
    """Spans of the tickets that were open during the pass, clipped to the pass, and of each ticket's phases."""
    read = events.filter(kind="ticket", store=store).drop_nulls("ready_ns")
    read = read.with_columns(seen_ns=pl.col("seen_ns").fill_null(pl.col("ready_ns")))
    open_then = read.filter(pl.col("submit_ns") < chosen["end_ns"], pl.col("seen_ns") > chosen["start_ns"]).sort("submit_ns")
    lanes = lanes_of(open_then["submit_ns"].to_list(), open_then["seen_ns"].to_list())
    for lane, ticket in zip(lanes, open_then.iter_rows(named=True), strict=True):
        shared = {
            "track": READS[store],
            "lane": lane,
            "name": _label(ticket, num_experts),
            **{name: ticket[name] for name in ("layer", "store", "intent", "outcome", "physical_bytes")},
        }
        steps = [ticket["submit_ns"], ticket["t_ns"], ticket["ready_ns"], ticket["seen_ns"]]
        for phase, start, end in (
            (None, steps[0], steps[-1]),
            *zip((QUEUED, IN_FLIGHT, UNSEEN), steps, steps[1:], strict=False),
        ):
            start_ns, end_ns = max(start, chosen["start_ns"]), min(end, chosen["end_ns"])
            if end_ns > start_ns:
                yield {**shared, "phase": phase, "start_ns": start_ns, "end_ns": end_ns}


def _label(ticket: dict[str, Any], num_experts: int) -> str:
    key = ticket["identity"]
    if ticket["store"] == "ple":
        return f"page {key & ((1 << _PAGE_BITS) - 1)}"
    return f"layer {key // num_experts}, expert {key % num_experts}"


def lanes_of(starts: Sequence[int], ends: Sequence[int]) -> list[int]:
    """A row number for each interval, such that intervals in one row don't overlap; `starts` must ascend."""
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    lanes = []
    for start, end in zip(starts, ends, strict=True):
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (end, lane))
        lanes.append(lane)
    return lanes


def _stages(
    stages: pl.DataFrame, chosen: dict[str, Any], waits: pl.DataFrame, readbacks: pl.DataFrame
) -> Iterator[dict[str, Any]]:
    """Spans of stages between read-backs: after layer l's read-back, its experts run, then layer l + 1 up to its router."""
    if stages.is_empty():
        return
    sums = stages.group_by("layer", "name").agg(pl.col("duration_ns").sum())
    mean_ns = {(layer, name): total / stages["position"].n_unique() for layer, name, total in sums.iter_rows()}
    layers = [_OUTSIDE, *readbacks["layer"].to_list(), _OUTSIDE]
    ends = [*(readbacks["t_ns"] + readbacks["duration_ns"]).to_list(), chosen["end_ns"]]
    start_ns = chosen["start_ns"]
    stood = list(zip(waits["t_ns"].to_list(), (waits["t_ns"] + waits["duration_ns"]).to_list(), strict=True))
    for earlier, later, end_ns in zip(layers, layers[1:], ends, strict=False):
        wanted = [*((earlier, name) for name in _BEHIND), *((later, name) for name in _BEFORE)]
        wanted += [(_OUTSIDE, "head")] if later == _OUTSIDE else []
        parts = [(key, mean_ns[key]) for key in wanted if mean_ns.get(key)]
        for (layer, name), start, end in _filled(parts, free_intervals(start_ns, end_ns, stood)):
            yield {"track": STAGE, "name": name, "start_ns": start, "end_ns": end, "layer": layer}
        start_ns = end_ns


def free_intervals(start_ns: int, end_ns: int, taken: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The parts of `[start, end)` outside the ascending intervals `taken`."""
    free = []
    for low, high in taken:
        if low >= end_ns:
            break
        if low > start_ns:
            free.append((start_ns, low))
        start_ns = max(start_ns, high)
    return [*free, (start_ns, end_ns)] if start_ns < end_ns else free


def _filled(
    parts: Sequence[tuple[tuple[int, str], float]], free: Sequence[tuple[int, int]]
) -> Iterator[tuple[tuple[int, str], int, int]]:
    """Spans of the parts in order, scaled to fill the free intervals; a part may continue in the next interval."""
    total_ns = sum(length for _, length in parts)
    if not total_ns:
        return
    scale = sum(end - start for start, end in free) / total_ns
    gaps = iter(free)
    at, end = map(float, next(gaps, (0, 0)))
    for key, length in parts:
        left = length * scale
        while left > 0:
            step = min(left, end - at)
            if round(at + step) > round(at):
                yield key, round(at), round(at + step)
            at, left = at + step, left - step
            if left > 0:
                # rounding may leave a trace of the last part when all gaps are full
                at, end = next(gaps, (0, 0))
                if end == 0:
                    return
