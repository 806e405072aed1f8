"""Bytes and outcomes of reads by class. A read counts in the class that it was planned in, which tells who requested it.

P0 is exact, P1 predicted within the layer, P2 predicted for later layers or tokens, P3 background warming. A predicted read that
an exact demand joins ends in P0 and still counts in the class that it was planned in.
"""

from collections.abc import Iterator
from typing import Any

import polars as pl

from workbench.schema.events import Events, rows_of

_STORES = ("expert", "ple")
_USED = ("used_on_time", "used_late")


def class_metrics(events: Events) -> dict[str, float]:
    """Bytes, share of used bytes and late fraction by store and class; absent for classes without reads and for version 1."""
    metrics: dict[str, float] = {}
    for store, priority, reads in _by_class(events):
        name = f"storage/{store}_p{priority}"
        values = {"bytes": _bytes(reads), "useful_ratio": _used_share(reads), "late_fraction": _late_share(reads)}
        metrics |= {f"{name}_{key}": float(value) for key, value in values.items() if value is not None}
    return metrics


def read_tables(events: Events) -> dict[str, list[dict[str, Any]]]:
    """The tables of a run's reads: `classes`, and `predictors` where one planned a read."""
    predictors = predictor_table(events)
    return {"classes": class_table(events)} | ({"predictors": predictors} if predictors else {})


def class_table(events: Events) -> list[dict[str, Any]]:
    """One row per store and class that had reads; a share whose denominator is 0 is None."""
    return [
        {
            "store": store,
            "class": f"P{priority}",
            "reads": reads.height,
            "bytes": _bytes(reads),
            "used_bytes_share": _used_share(reads),
            "late_share": _late_share(reads),
            "ended_more_urgent": reads.filter(pl.col("ended_priority") < pl.col("priority")).height,
        }
        for store, priority, reads in _by_class(events)
    ]


def predictor_table(events: Events) -> list[dict[str, Any]]:
    """One row per predictor that planned a read: the reads, the share of them that was used, the mean confidence."""
    reads = _reads(events, "predictor", "outcome", "confidence").drop_nulls("predictor")
    return [
        {
            "predictor": predictor,
            "reads": own.height,
            "used_share": own.filter(pl.col("outcome").is_in(_USED)).height / own.height,
            "mean_confidence": own["confidence"].mean(),
        }
        for (predictor,), own in reads.sort("predictor").group_by("predictor", maintain_order=True)
    ]


def _by_class(events: Events) -> Iterator[tuple[str, int, pl.DataFrame]]:
    reads = _reads(events, "store", "priority", "ended_priority", "outcome", "logical_bytes")
    reads = reads.filter(pl.col("store").is_in(_STORES)).drop_nulls("priority").sort("store", "priority")
    for (store, priority), own in reads.group_by("store", "priority", maintain_order=True):
        yield str(store), int(priority), own


def _reads(events: Events, *columns: str) -> pl.DataFrame:
    """Columns of the tickets whose read did not fail, outside the attribution run."""
    failed, attribution = pl.col("outcome").eq_missing("failed"), pl.col("phase").eq_missing("attribution")
    return rows_of(events.lazy().filter(~failed, ~attribution), ["ticket"], columns)


def _bytes(reads: pl.DataFrame) -> int:
    return int(reads["logical_bytes"].sum())


def _used_share(reads: pl.DataFrame) -> float | None:
    total = _bytes(reads)
    return _bytes(reads.filter(pl.col("outcome").is_in(_USED))) / total if total else None


def _late_share(reads: pl.DataFrame) -> float | None:
    """Late reads / demanded reads; late: not ready when compute first asked. None without demanded reads."""
    demanded = reads.filter(pl.col("outcome").is_in(_USED))
    return demanded.filter(outcome="used_late").height / demanded.height if demanded.height else None
