"""The twin of a live run: gets the same routes, pages, cache and settings, but nothing that the live run measured."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from workbench.errors import BadInput
from workbench.experiments.routes import ROUTES_NAME
from workbench.loading.pages import LAYER_SHIFT
from workbench.model.ngram import NgramContext, layer_row_ids
from workbench.runtime.config import RuntimeConfig
from workbench.runtime.store_cache import plan_store_cache
from workbench.schema import EventLog, RunFolder, read_routes
from workbench.schema.envelopes import Envelope
from workbench.simulate.passes import Pass, passes
from workbench.simulate.stages import StageTimes
from workbench.simulate.twin import Twin, TwinConfig
from workbench.stores import Store, open_store

_IMITATED = {"ple": "early", "queue": "lanes", "readback": "ids", "predictor": "nothing", "split_components": False}
"""Settings of the runtime of which the twin supports one value only."""


@dataclass(frozen=True, kw_only=True)
class TwinInputs:
    """Inputs of a twin that are taken from a live run."""

    config: TwinConfig
    """The twin's settings, from the run's settings and its store."""
    passes: tuple[Pass, ...]
    """The passes to replay, from the run's routes and token ids."""

    def replay(self, stages: StageTimes, envelope: Envelope) -> pl.DataFrame:
        """Runs the twin with the given stage times and disk, and returns its events."""
        return Twin(self.config, stages, envelope, EventLog()).run(self.passes).frame()


def twin_inputs(live: RunFolder, runtime: RuntimeConfig, store_path: Path) -> TwinInputs:
    """The inputs of a trace run's twin; prompts must have run token by token.

    Raises BadInput on settings that the twin does not support.
    """
    for name, value in _IMITATED.items():
        if getattr(runtime, name) != value:
            raise BadInput(f"runtime.{name}: the twin supports {value!r} only")
    store = open_store(store_path)
    _, budget = plan_store_cache(store, runtime.cache_bytes)
    frame, _ = read_routes(live.artifacts / ROUTES_NAME)
    config = TwinConfig(
        num_slots=budget.num_slots,
        policy=runtime.policy,
        record_bytes=store.geometry.record_bytes,
        num_experts=store.geometry.num_experts,
        wave=runtime.wave,
        depth=runtime.expert_depth,
        ple_slots=max(1, budget.num_pages),
    )
    return TwinInputs(config=config, passes=tuple(_with_pages(frame, store)))


def _with_pages(frame: pl.DataFrame, store: Store) -> Iterator[Pass]:
    """One pass per token of the trace, with the n-gram pages that hold the token's rows."""
    tokens = frame.filter(layer=frame["layer"].min()).sort("request", "position")
    needed = {
        int(request): _pages_by_token(rows["token_id"].to_numpy(), store)
        for (request,), rows in tokens.group_by("request", maintain_order=True)
    }
    for each in passes(frame, store.geometry.num_experts, tile=1):
        by_layer = needed[each.request]
        yield replace(each, pages={layer: keys[each.position] for layer, keys in by_layer.items()})


def _pages_by_token(tokens: np.ndarray, store: Store) -> dict[int, list[tuple[int, ...]]]:
    """The page keys of each token, ascending, by PLE layer. `tokens`: the ids of one request."""
    made = {}
    for place, layer in enumerate(store.geometry.ple_layers):
        rows = layer_row_ids(store.geometry, place, tokens.astype(np.int64), NgramContext(store.geometry))
        pages, _ = store.ngrams[layer].locate(rows)
        made[layer] = [tuple(np.unique(keys).tolist()) for keys in pages + (place << LAYER_SHIFT)]
    return made
