"""`workbench timeline`: one token of a run in detail, for Perfetto and as a figure."""

import sys

from cyclopts import App

from workbench.cli.evidence import find_run
from workbench.cli.output import OutputFile, print_json, print_table


def register(app: App) -> None:
    """Adds the command."""
    app.command(timeline)


def timeline(run: str, *, token: int | None = None, out: OutputFile | None = None, json: bool = False) -> None:
    """Writes one decoded token as a trace (open it at ui.perfetto.dev) and a figure; prints its exposed waits by layer.

    Stages are shown if the run has an attribution run: their order is measured, their lengths are scaled from that run.

    Example: workbench timeline generate/20261130-004313133-0105 --token 12

    Parameters
    ----------
    run
        The run's folder, <kind>/<id>, or the beginning of its id.
    token
        Which decoded token, from 1 on; by default one of median time. Tokens that one pass committed are shown together.
    out
        The trace's file, the figure is written beside it; default: artifacts/timeline.json of the run.
    json
        One JSON document instead of tables.
    """
    from workbench.experiments.timeline import make_timeline
    from workbench.gates.traces import profile_geometry

    folder = find_run(run)
    geometry = profile_geometry(folder.environment["profile"])
    made = make_timeline(folder, out, number=token, num_experts=geometry.num_experts)
    waits, mean_waits = made.waits.to_dicts(), made.mean_waits.to_dicts()
    evidence = folder.environment["evidence"]
    if json:
        figures = {"token": made.token, "committed_tokens": made.committed_tokens, "token_ms": made.token_ms}
        about = {"evidence": evidence, "trace": str(made.trace), "figure": str(made.figure)}
        print_json("timeline", {**about, **figures, "waits": waits, "mean_waits": mean_waits})
        return
    each = "" if made.committed_tokens == 1 else " each"
    print_table(waits, f"Exposed waits of {made.words}, {made.token_ms:.1f} ms{each}, by layer and class ({evidence})")
    print_table(mean_waits, f"Exposed waits per token, mean of all decoded tokens ({evidence})")
    print(f"\n{made.trace}\n{made.figure}")
    print("open the trace at https://ui.perfetto.dev (it stays on your machine)", file=sys.stderr)
