"""The timeline of a finished run: one token as a Perfetto trace and as a figure, and its exposed waits by layer and class."""

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from workbench.analysis.timeline import choose_pass, exposed_waits, numbered_passes, token_spans, token_words
from workbench.analysis.trace_events import trace_document
from workbench.errors import BadInput
from workbench.files import check_output, json_text, write_atomically
from workbench.plots.style import save_figure
from workbench.plots.timeline import timeline_figure
from workbench.schema import Evidence, RunFolder, read_events
from workbench.units import NS_PER_MS

TIMELINE_NAME = "timeline.json"


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Files of a timeline, and the token's time and waits."""

    token: int
    """Number of the token, from 1 on; when its pass committed several tokens, the first of them."""
    committed_tokens: int
    """Tokens that the token's pass committed."""
    token_ms: float
    """Time of the pass per committed token, from the end of the previous pass, milliseconds."""
    trace: Path
    """JSON for Perfetto."""
    figure: Path
    """PNG."""
    waits: pl.DataFrame
    """Exposed waits per committed token of this pass, by layer and class."""
    mean_waits: pl.DataFrame
    """Exposed waits per committed token of all passes that generate tokens, by layer and class."""

    @property
    def words(self) -> str:
        """The tokens of the pass, in words."""
        return token_words(self.token, self.committed_tokens)


def make_timeline(run: RunFolder, out: Path | None = None, *, number: int | None = None, num_experts: int) -> Timeline:
    """Writes the trace to `out` (by default in the run's artifacts) and the figure next to the trace.

    Args:
        run: a run that decoded something.
        out: the trace's file; the figure gets the suffix `.png`.
        number: which decoded token, from 1 on; by default one of median time.
        num_experts: experts per layer, from which records are named.

    Raises BadInput when there is no such token, and on an `out` that is no JSON file's path.
    """
    trace, figure = _outputs(out or run.artifacts / TIMELINE_NAME)
    events = read_events(run.path / "events.parquet")
    chosen = choose_pass(numbered_passes(events), number)
    spans, waits = token_spans(events, chosen, num_experts), exposed_waits(events, chosen)
    about = run.environment
    number, num_tokens = chosen["number"], chosen["committed_tokens"]
    words = token_words(number, num_tokens)
    token_ms = (chosen["end_ns"] - chosen["start_ns"]) / NS_PER_MS / num_tokens
    named = f"{about['kind']}/{about['run_id']}"
    said = {"run": named, "token": words, "profile": about["profile"], "evidence": about["evidence"]}
    write_atomically(trace, (json_text(trace_document(spans, said)) + "\n").encode())
    each = "" if num_tokens == 1 else " each"
    title = f"{words.capitalize()}: {token_ms:.1f} ms{each}, exposed wait {waits['wait_ms'].sum():.1f} ms{each}"
    source = f"{about['profile']}, {named}"
    save_figure(timeline_figure(spans, title, evidence=Evidence(about["evidence"]), source=source), figure)
    return Timeline(
        token=number,
        committed_tokens=num_tokens,
        token_ms=token_ms,
        trace=trace,
        figure=figure,
        waits=waits,
        mean_waits=exposed_waits(events),
    )


def _outputs(trace: Path) -> tuple[Path, Path]:
    """Paths of the trace and of the figure. Raises BadInput where they are the same or can't be written."""
    figure = check_output(check_output(trace).with_suffix(".png"))
    if figure == trace:
        raise BadInput(f"can't write {trace}: the figure has this name; name the trace, e.g. {trace.with_suffix('.json')}")
    return trace, figure
