"""`workbench generate` and `trace`: text with metrics, and route traces."""

import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from workbench.cli.output import OutputFolder, print_json, print_table
from workbench.cli.track import file_results
from workbench.config import overlay, read_toml
from workbench.errors import BadInput
from workbench.files import read_text
from workbench.paths import runs_folder
from workbench.schema import METRICS, Result
from workbench.units import GB, format_bytes, parse_bytes

_SHOWN = (
    "e2e/prefill_tps",
    "e2e/decode_tps",
    "e2e/bound_tps",
    "e2e/dependency_bound_ms",
    "e2e/bound_fraction",
    "e2e/ttft_ms",
    "e2e/tpot_p50_ms",
    "e2e/tpot_p95_ms",
    "e2e/demand_bytes_per_token",
    "e2e/wasted_bytes_per_token",
    "overlap/exposed_wait_ms",
    "ple/exposed_wait_ms",
    "overlap/hidden_fraction",
    "routing/decode_hit_rate",
    "routing/misses_per_token",
    "storage/expert_bandwidth_gbps",
    "e2e/working_set_bytes",
    "e2e/peak_rss_bytes",
)


def register(app: App) -> None:
    """Adds the commands."""
    app.command(generate)
    app.command(trace)


def generate(
    *,
    prompt: str | None = None,
    prompt_file: Path | None = None,
    turns: Path | None = None,
    max_tokens: int | None = None,
    cache_bytes: str | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    resident: bool | None = None,
    bandwidth_gbps: float | None = None,
    profile: str | None = None,
    config: Path | None = None,
    settings: Annotated[tuple[str, ...], Parameter(name="--set", negative=())] = (),
    out: OutputFolder | None = None,
    json: bool = False,
) -> None:
    """Streams text from a packed model, then prints the metrics beside the bound.

    Example: workbench generate --prompt "def main():" --max-tokens 64 --cache-bytes 16MiB

    Parameters
    ----------
    prompt
        Text to continue.
    prompt_file
        File that holds the prompt.
    turns
        File with one prompt per line; each line is a turn that continues the sequence and its cache.
    max_tokens
        Tokens to generate in each turn; default 128.
    cache_bytes
        Budget for record slots and n-gram pages together, e.g. 64MiB; default: half of the free memory.
    temperature
        Sampling temperature; default 0: greedy.
    top_p
        Share of the probability that is kept when temperature is above 0.
    seed
        Seed of the sampling.
    resident
        Hold the whole checkpoint in memory instead of streaming it (profile mini).
    bandwidth_gbps
        Disk bandwidth for the bound, GB/s; default: measured by a short probe of the store.
    profile
        mini (default), slice or flash-next.
    config
        A TOML file with the settings of a generate run; other options, then --set, override it.
    settings
        Any setting, e.g. runtime.policy=lru; may be repeated.
    out
        Folder for the result folder, instead of runs/.
    json
        One JSON document instead of text and a table.
    """
    from workbench.experiments.generate import GenerateConfig, run_generate

    options = {
        "profile": profile,
        "turns": _prompts(prompt, prompt_file, turns),
        "max_tokens": max_tokens,
        "resident": resident,
        "bandwidth_gbps": bandwidth_gbps,
        "runtime": {"cache_bytes": None if cache_bytes is None else parse_bytes(cache_bytes)},
        "sampling": {"temperature": temperature, "top_p": top_p, "seed": seed},
    }
    made = GenerateConfig.build(overlay(read_toml(config) if config else {}, options), settings)
    on_text = None if json else lambda piece: print(piece, end="", flush=True)
    generated = run_generate(made, on_text=on_text, root=out)
    result = generated.folder.result
    assert result is not None
    if json:
        print_json("generate", {"folder": str(generated.folder.path), "texts": generated.texts, **result.model_dump(mode="json")})
    else:
        print("\n")
        _print_metrics(result)
        _print_predictions(result)
        print(f"\nresult folder: {generated.folder.path}")
    file_results(out or runs_folder())


def _prompts(prompt: str | None, prompt_file: Path | None, turns: Path | None) -> list[str] | None:
    given = [value for value in (prompt, prompt_file, turns) if value is not None]
    if len(given) > 1:
        raise BadInput("give one of --prompt, --prompt-file and --turns")
    if prompt is not None:
        return [prompt]
    if prompt_file is not None:
        return [read_text(prompt_file)]
    if turns is not None:
        # not splitlines, which also cuts at form feeds and Unicode line separators
        return [line for line in read_text(turns).replace("\r\n", "\n").split("\n") if line.strip()]
    return None


def _print_metrics(result: Result) -> None:
    rows = [_row(name, result.metrics[name]) for name in _SHOWN if name in result.metrics]
    print_table(rows, f"{result.profile}, {result.tags.get('arm', '')}, {result.evidence.value}")
    if "bandwidth_source" in result.tags:
        print(
            f"\nbound: bandwidth {float(result.tags['bandwidth_bytes_per_s']) / GB:.3g} GB/s ({result.tags['bandwidth_source']})"
        )
    if "cache_slots" in result.tags:
        print(f"cache: {result.tags['cache_slots']} record slots, {result.tags['cache_pages']} n-gram pages")


def _print_predictions(result: Result) -> None:
    """Prints the tables of reads by class and by predictor, if a predictor planned reads."""
    if "predictors" in result.tables:
        about = f"{result.profile}, {result.evidence.value}"
        print_table([_shares(row) for row in result.tables["classes"]], f"reads by class, {about}")
        print_table([_shares(row) for row in result.tables["predictors"]], f"reads by predictor, {about}")


def _shares(row: dict[str, Any]) -> dict[str, Any]:
    return {name: f"{value:.3f}" if isinstance(value, float) else value for name, value in row.items()}


def _row(name: str, value: float) -> dict[str, Any]:
    metric = METRICS[name]
    shown = format_bytes(value) if metric.unit == "bytes" else f"{value:.4g}"
    return {"metric": name, "value": shown, "unit": "" if metric.unit == "bytes" else metric.unit, "meaning": metric.meaning}


def trace(
    *,
    requests: int = 40,
    tokens: int = 128,
    split: str = "held_out",
    families: tuple[str, ...] = (),
    prompt_file: Path | None = None,
    profile: str = "mini",
    settings: Annotated[tuple[str, ...], Parameter(name="--set", negative=())] = (),
    out: OutputFolder | None = None,
    json: bool = False,
) -> None:
    """Decodes bundled prompts and writes every route of the native router to artifacts/routes.parquet.

    Example: workbench trace --requests 8 --tokens 64 --split train

    Parameters
    ----------
    requests
        Prompts to decode, taken from the families in turn.
    tokens
        Tokens to decode in each.
    split
        held_out, train or all.
    families
        Prompt families; default: all.
    prompt_file
        File that holds a prompt of your own, decoded as the only request.
    profile
        mini, slice or flash-next.
    settings
        Any setting, e.g. sampling.temperature=0; may be repeated.
    out
        Folder for the result folder, instead of runs/.
    json
        One JSON document instead of text.
    """
    from workbench.experiments.routes import ROUTES_NAME
    from workbench.experiments.trace import TraceConfig, record_trace

    given: dict[str, Any] = {"tokens": tokens, "split": split, "families": families, "profile": profile}
    given |= {"requests": requests} if prompt_file is None else {"requests": 1, "texts": [read_text(prompt_file)]}
    folder = record_trace(TraceConfig.build(given, settings), root=out)
    routes = folder.artifacts / ROUTES_NAME
    result = folder.result
    assert result is not None
    if json:
        print_json("trace", {"folder": str(folder.path), "routes": str(routes), **result.model_dump(mode="json")})
    else:
        print(f"{result.tags['requests']} requests, {routes}")
        print(f"next: workbench gate b_locality --set trace={routes}", file=sys.stderr)
    file_results(out or runs_folder())
