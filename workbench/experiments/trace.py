"""A trace run: requests decoded on the exact target, the native router's choices written down."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from pydantic import Field
from tokenizers import Tokenizer

from workbench.analysis.run_metrics import run_metrics
from workbench.config import Config
from workbench.errors import BadInput
from workbench.experiments.generate import encode, load_tokenizer
from workbench.paths import data_folder, runs_folder, store_folder
from workbench.progress import progress
from workbench.prompts import Prompt, load_prompts
from workbench.runtime.engine import RuntimeConfig, StreamedEngine
from workbench.runtime.sampling import Sampler, SamplingConfig
from workbench.runtime.session import Engine, Session, generate
from workbench.runtime.streamed import Step
from workbench.schema import ROUTE_SCHEMA, Evidence, RunFolder, write_routes

ROUTES_NAME = "routes.parquet"


class TraceConfig(Config):
    """Which requests to decode, and how."""

    profile: str = "mini"
    """mini, slice or flash-next."""
    requests: int = Field(40, ge=1)
    """Requests, taken in turn from the families, one after another in one cache."""
    tokens: int = Field(128, ge=1)
    """Tokens to decode in each; an end-of-text token does not end a request, so that all have the same length."""
    split: str = "held_out"
    """held_out, train, or all prompts."""
    families: tuple[str, ...] = ()
    """Prompt families; empty: all that the split has."""
    sampling: SamplingConfig = SamplingConfig(temperature=0.8, top_p=0.95)
    """How tokens are chosen: greedy text of a small model loops, and its routes repeat. The seed grows by one a request."""
    runtime: RuntimeConfig = RuntimeConfig()
    """Where experts and n-gram rows come from; routes do not depend on it."""


class RouteRecorder:
    """Collects the rows of a route trace."""

    def __init__(self) -> None:
        self.prompt: Prompt | None = None
        self._parts: list[dict[str, Any]] = []

    def record(self, step: Step, layer: int, tokens: np.ndarray, ids: np.ndarray, weights: np.ndarray) -> None:
        """A `RouteSink`: takes one layer of one pass."""
        part = {"step": replace(step), "prompt": self.prompt, "layer": layer}
        self._parts.append(part | {"tokens": tokens, "ids": ids.astype(np.int16), "weights": weights.astype(np.float32)})

    def frame(self) -> pl.DataFrame:
        """Everything recorded, in `ROUTE_SCHEMA`, by request, position and layer."""
        if not self._parts:
            return pl.DataFrame(schema=ROUTE_SCHEMA)
        frame = pl.concat([self._rows(part) for part in self._parts])
        return frame.sort("request", "position", "layer", maintain_order=True)

    @staticmethod
    def _rows(part: dict[str, Any]) -> pl.DataFrame:
        step, prompt, num_tokens = part["step"], part["prompt"], len(part["tokens"])
        return pl.DataFrame(
            {
                "request": [step.request] * num_tokens,
                "family": [prompt.family] * num_tokens,
                "split": [prompt.split] * num_tokens,
                "phase": [step.phase] * num_tokens,
                "position": np.arange(step.position, step.position + num_tokens),
                "layer": [part["layer"]] * num_tokens,
                "token_id": part["tokens"],
                "experts": part["ids"].tolist(),
                "weights": part["weights"].tolist(),
            },
            schema=ROUTE_SCHEMA,
        )


def record_trace(config: TraceConfig, root: Path | None = None) -> RunFolder:
    """Decodes the requests and leaves `artifacts/routes.parquet` in a result folder of kind `trace`."""
    prompts = choose_prompts(config)
    folder = RunFolder.create(
        root or runs_folder(), "trace", config, profile=config.profile, evidence=Evidence.TRACE, tags={"split": config.split}
    )
    recorder = RouteRecorder()
    with folder, StreamedEngine(store_folder(config.profile), config.runtime, folder.events) as engine:
        tokenizer = load_tokenizer(config.profile)
        with progress("trace", len(prompts) * config.tokens) as advance:
            for request, prompt in enumerate(prompts):
                recorder.prompt = prompt
                for _ in _decode(config, engine, tokenizer, request, recorder):
                    advance(1)
        engine.close()
        geometry = engine.model.geometry
        write_routes(
            recorder.frame(),
            folder.artifacts / ROUTES_NAME,
            num_layers=geometry.num_hidden_layers,
            num_experts=geometry.num_experts,
            top_k=geometry.num_experts_per_tok,
        )
        tags = engine.identity | {"requests": str(len(prompts)), "prompts": " ".join(prompt.id for prompt in prompts)}
        folder.finish(metrics=run_metrics(folder.events.frame()), tags=tags)
    return folder


def _decode(config: TraceConfig, engine: Engine, tokenizer: Tokenizer, request: int, recorder: RouteRecorder) -> Iterator[object]:
    assert recorder.prompt is not None
    session = Session(engine, request=request, route_sink=recorder.record)
    sampling = config.sampling.model_copy(update={"seed": config.sampling.seed + request})
    return generate(session, encode(tokenizer, recorder.prompt.text), config.tokens, Sampler(sampling))


def choose_prompts(config: TraceConfig) -> list[Prompt]:
    """`config.requests` prompts, one family after another in turn. Raises BadInput when there are too few."""
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
