"""Misses that one more slot would save, by layer: shows whether a cache should favour some layers."""

import numpy as np
import polars as pl

from workbench.analysis.bootstrap import Resampler
from workbench.analysis.misses import by_request
from workbench.analysis.routes import Array, Routes
from workbench.simulate.replay import miss_counts

POLICY = "lru"
"""LRU's misses never rise with more slots, so that every saving is at least 0."""


def slot_value_table(routes: Routes, fraction: float, resampler: Resampler, *, step: int = 4) -> pl.DataFrame:
    """By layer: misses per decoded token with slots for `fraction` of its records, and misses that one more slot would save.

    Each layer has a cache of its own; the saving is the mean over `step` additional slots.
    """
    num_slots = max(routes.top_k, round(fraction * routes.num_experts))
    rows = []
    for place, layer in enumerate(routes.layers):
        fewer, more = (_missed(routes, place, slots) for slots in (num_slots, num_slots + step))
        saved = resampler.ratio((by_request(routes, fewer) - by_request(routes, more)) / step, routes.decoded_tokens)
        rows.append(
            {
                "layer": layer,
                "slots": num_slots,
                "misses_per_token": float(by_request(routes, fewer).sum() / routes.decoded_tokens.sum()),
                "saved_by_a_slot": float(saved.value),
                "saved_by_a_slot_low": float(saved.low),
                "saved_by_a_slot_high": float(saved.high),
            }
        )
    return pl.DataFrame(rows)


def _missed(routes: Routes, place: int, num_slots: int) -> Array:
    """`[N]` records that each token missed in one layer's own cache."""
    return np.asarray(miss_counts(routes.experts[:, place].tolist(), num_slots, POLICY))
