"""A trace run: decodes requests with the exact model and records the native router's choices."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import polars as pl
from pydantic import Field
from tokenizers import Tokenizer

from workbench.analysis.run_metrics import run_metrics
from workbench.config import Config
from workbench.errors import BadInput
from workbench.experiments.routes import RouteRecorder, write_model_routes
from workbench.experiments.text import encode, load_tokenizer
from workbench.files import write_atomically
from workbench.paths import Profile, data_folder, runs_folder, store_folder
from workbench.progress import progress
from workbench.prompts import Prompt, load_prompts
from workbench.runtime.config import RuntimeConfig
from workbench.runtime.engine import Engine
from workbench.runtime.forward import PREFILL_TILE
from workbench.runtime.sampling import Sampler, SamplingConfig
from workbench.runtime.session import Session, generate
from workbench.runtime.streamed import StreamedEngine
from workbench.schema import Evidence, RunFolder
from workbench.schema.parquet import read_parquet, write_parquet

_PARTS_NAME = "parts"


class TraceConfig(Config):
    """The requests to decode, and the settings of decoding."""

    profile: Profile = "mini"
    """mini, slice or flash-next."""
    requests: int = Field(40, ge=1)
    """Number of requests, whose prompts are taken from the families in turn; they run one after another with one cache."""
    tokens: int = Field(128, ge=1)
    """Tokens to decode per request; an end-of-text token does not end a request, so that all requests have the same length."""
    split: str = "held_out"
    """held_out, train, or all prompts."""
    families: tuple[str, ...] = ()
    """Prompt families; default: all families of the split."""
    texts: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Prompts of your own, one request each, in place of bundled ones; their number is `requests`, their family `own`."""
    tile: int = Field(PREFILL_TILE, ge=1)
    """Prompt tokens per prefill pass."""
    prompt_tokens: int | None = Field(None, ge=1)
    """Number of first tokens of each prompt that are used; default: all tokens."""
    beyond_positions: bool = False
    """Let sequences grow longer than the positions that the model was made for."""
    sampling: SamplingConfig = SamplingConfig(temperature=0.8, top_p=0.95)
    """Sampling of tokens; not greedy, since greedy text of a small model loops. The seed grows by one per request."""
    runtime: RuntimeConfig = RuntimeConfig()
    """Cache and reads of experts and n-gram rows; routes do not depend on these settings."""


def record_trace(
    config: TraceConfig, root: Path | None = None, *, tags: Mapping[str, str] | None = None, earlier: RunFolder | None = None
) -> RunFolder:
    """Decodes the requests and writes `artifacts/routes.parquet` in a result folder of kind `trace`.

    Args:
        config: what to record.
        root: folder of all results.
        tags: further tags of the run.
        earlier: an interrupted run of the same configuration, whose finished requests are reused.
    """
    with progress("trace", config.requests * config.tokens) as advance:
        *_, folder = trace_steps(config, root, tags=tags, earlier=earlier, advance=advance)
    return folder


def trace_steps(
    config: TraceConfig,
    root: Path | None = None,
    *,
    tags: Mapping[str, str] | None = None,
    earlier: RunFolder | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> Iterator[RunFolder]:
    """Runs `record_trace` one token at a time, so that other runs can be interleaved.

    Yields the result folder after each token, and once more when the folder is finished. `advance` is called with the number
    of tokens done since its last call.
    """
    prompts = choose_prompts(config)
    config.runtime.check_envelope()
    tags = {**(tags or {}), "split": config.split}
    folder = RunFolder.create(root or runs_folder(), "trace", config, profile=config.profile, evidence=Evidence.TRACE, tags=tags)
    with folder, StreamedEngine(store_folder(config.profile), config.runtime, folder.events) as engine:
        parts = folder.artifacts / _PARTS_NAME
        taken = _take_over(earlier, parts)
        for num_tokens in _record_requests(config, engine, prompts, parts):
            advance(num_tokens)
            yield folder
        engine.close()
        frame = pl.concat([read_parquet(path) for path in sorted(parts.iterdir())])
        write_model_routes(frame, folder, engine.model.geometry)
        shutil.rmtree(parts)
        made = {"requests": str(len(prompts)), "prompts": " ".join(prompt.id for prompt in prompts), "taken_over": str(taken)}
        folder.finish(metrics=run_metrics(folder.events.scan()), tags=engine.identity | made)
    yield folder


def _take_over(earlier: RunFolder | None, parts: Path) -> int:
    """Copies the routes of an earlier run's finished requests; returns the number of these requests."""
    parts.mkdir()
    done = sorted((earlier.artifacts / _PARTS_NAME).glob("*.parquet")) if earlier else []
    for path in done:
        write_atomically(parts / path.name, path.read_bytes())
    return len(done)


def _record_requests(config: TraceConfig, engine: Engine, prompts: Sequence[Prompt], parts: Path) -> Iterator[int]:
    """Writes one file per request, so that an interrupted run keeps its finished requests; yields numbers of tokens done."""
    tokenizer = load_tokenizer(config.profile)
    for request, prompt in enumerate(prompts):
        part = parts / f"{request:06d}.parquet"
        if part.exists():
            yield config.tokens
            continue
        recorder = RouteRecorder(prompt.family, prompt.split)
        for _ in _decode(config, engine, tokenizer, request, prompt, recorder):
            yield 1
        write_parquet(recorder.frame(), part)


def _decode(
    config: TraceConfig, engine: Engine, tokenizer: Tokenizer, request: int, prompt: Prompt, recorder: RouteRecorder
) -> Iterator[object]:
    session = Session(
        engine, request=request, tile=config.tile, route_sink=recorder.record, beyond_positions=config.beyond_positions
    )
    sampling = config.sampling.model_copy(update={"seed": config.sampling.seed + request})
    ids = encode(tokenizer, prompt.text, engine.model.geometry.vocab_size)[: config.prompt_tokens]
    return generate(session, ids, config.tokens, Sampler(sampling))


def _own_prompts(config: TraceConfig) -> list[Prompt]:
    if len(config.texts) != config.requests:
        raise BadInput(f"requests: {config.requests} asked, {len(config.texts)} texts given: one request for each text")
    unknown: dict[str, Any] = dict.fromkeys(("source", "version", "licence", "path"), "given")
    split = "train" if config.split == "train" else "held_out"
    return [
        Prompt(id=f"own-{number:02d}", family="own", split=split, num_tokens=0, trained_on=None, text=text, **unknown)
        for number, text in enumerate(config.texts)
    ]


def choose_prompts(config: TraceConfig) -> list[Prompt]:
    """`config.requests` prompts, taken from the families in turn. Raises BadInput when there are too few prompts."""
    if config.texts:
        return _own_prompts(config)
    split = None if config.split == "all" else config.split
    prompts = load_prompts(data_folder() / "prompts", split=split)
    families = config.families or tuple(dict.fromkeys(prompt.family for prompt in prompts))
    by_family = [[prompt for prompt in prompts if prompt.family == family] for family in families]
    if empty := [family for family, members in zip(families, by_family, strict=True) if not members]:
        raise BadInput(f"families: no {config.split} prompt of family {empty[0]!r}")
    longest = max(map(len, by_family))
    in_turn = [members[i] for i in range(longest) for members in by_family if i < len(members)]
    if len(in_turn) < config.requests:
        raise BadInput(f"requests: {config.requests} asked, {len(in_turn)} {config.split} prompts of {', '.join(families)} exist")
    return in_turn[: config.requests]
