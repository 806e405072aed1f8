"""A finished run's timeline: one token as a trace for Perfetto and as a figure, its exposed waits by layer and class."""

import json
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from workbench.analysis.timeline import choose_token, decoded_tokens, exposed_waits, token_spans
from workbench.analysis.trace_events import trace_document
from workbench.plots.style import save_figure
from workbench.plots.timeline import timeline_figure
from workbench.schema import Evidence, RunFolder, read_events
from workbench.units import NS_PER_MS

TIMELINE_NAME = "timeline.json"


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """What was written, and how the token's time went."""

    token: int
    """Number of the token, from 1 on."""
    token_ms: float
    """From the end of the token before it."""
    trace: Path
    """JSON for Perfetto."""
    figure: Path
    """PNG."""
    waits: pl.DataFrame
    """Exposed waits of this token, by layer and class."""
    mean_waits: pl.DataFrame
    """The same of all decoded tokens, a token."""


def make_timeline(run: RunFolder, out: Path | None = None, *, number: int | None = None, num_experts: int) -> Timeline:
    """Writes the trace to `out` (in the run's artifacts where nothing is said) and the figure beside it.

    Args:
        run: a run that decoded something.
        out: the trace's file; the figure gets the suffix `.png`.
        number: which decoded token, from 1 on; the one of median time where nothing is said.
        num_experts: experts a layer, to name records.

    Raises BadInput when there is no such token.
    """
    events = read_events(run.path / "events.parquet")
    token = choose_token(decoded_tokens(events), number)
    spans = token_spans(events, token, num_experts)
    waits = exposed_waits(events, token)
    about = run.environment
    token_ms = (token["end_ns"] - token["start_ns"]) / NS_PER_MS
    named = f"{about['kind']}/{about['run_id']}"
    trace = out or run.artifacts / TIMELINE_NAME
    trace.parent.mkdir(parents=True, exist_ok=True)
    said = {"run": named, "token": f"token {token['number']}", "profile": about["profile"], "evidence": about["evidence"]}
    trace.write_text(json.dumps(trace_document(spans, said)) + "\n")
    title = f"Token {token['number']}: {token_ms:.1f} ms, compute stood still {waits['wait_ms'].sum():.1f} ms"
    source = f"{about['profile']}, {named}"
    figure = trace.with_suffix(".png")
    save_figure(timeline_figure(spans, title, evidence=Evidence(about["evidence"]), source=source), figure)
    return Timeline(
        token=token["number"],
        token_ms=token_ms,
        trace=trace,
        figure=figure,
        waits=waits,
        mean_waits=exposed_waits(events),
    )
