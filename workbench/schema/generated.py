"""The one definition of generated tokens: the passes that committed them, and the intervals that every rate counts.

`committed_tokens` of token events is the only denominator of tokens/s, time per token and figures per token.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl

from workbench.errors import BadInput
from workbench.schema.events import PAUSES

GENERATION_PHASES = ("decode", "verify")
"""Phases whose passes generate tokens: a verify pass commits one or more, a decode pass usually one."""


def generated(events: pl.DataFrame) -> pl.DataFrame:
    """The events of generation phases."""
    return events.filter(pl.col("phase").is_in(GENERATION_PHASES))


def passes(events: pl.DataFrame) -> pl.DataFrame:
    """One row per pass that committed tokens, of any phase, in the order of their ends.

    Columns: `request`, `turn_ns` (the `request_start` mark before it; null: none), `phase`, `position`, `end_ns`,
    `duration_ns`, `committed_tokens`. Raises BadInput on a token event that lacks `committed_tokens`.
    """
    ended = events.filter(kind="token")
    if ended["committed_tokens"].null_count():
        raise BadInput("a token event lacks committed_tokens")
    ended = ended.filter(pl.col("committed_tokens") > 0).sort("t_ns", maintain_order=True)
    turns = events.filter(kind="mark", name="request_start").sort("t_ns").select("request", "t_ns", turn_ns="t_ns")
    # a mark at the very end of a pass begins the turn that follows the pass
    found = ended.join_asof(turns, on="t_ns", by="request", allow_exact_matches=False, check_sortedness=False)
    return found.select("request", "turn_ns", "phase", "position", "duration_ns", "committed_tokens", end_ns="t_ns")


def generated_passes(events: pl.DataFrame) -> pl.DataFrame:
    """The `passes` of generation phases."""
    return generated(passes(events))


def generated_tokens(events: pl.DataFrame) -> int:
    """Tokens that generation phases committed."""
    return int(generated_passes(events)["committed_tokens"].sum())


def paused_ns(events: pl.DataFrame, times_ns: np.ndarray) -> np.ndarray:
    """For each time, the nanoseconds that pauses (writing chunks of events, showing text) had taken by then."""
    marks = events.filter(pl.col("name").is_in(PAUSES), kind="mark").sort("t_ns")
    totals = np.concatenate([[0], np.cumsum(marks["duration_ns"].to_numpy(), dtype=np.int64)])
    return totals[np.searchsorted(marks["t_ns"].to_numpy(), times_ns, side="right")]


@dataclass(frozen=True)
class Intervals:
    """The time that rates count: of each request and turn, from the end of its first generating pass to that of its last.

    The tokens of a turn's first pass, prompts, and the time between turns are left out.
    """

    passes: pl.DataFrame
    """`generated_passes` with `before_ns`: end of the pass before in the same request and turn; null: a turn's first pass. And
    with `took_ns`: the time from then to the end of the pass, pauses left out."""

    @classmethod
    def of(cls, events: pl.DataFrame) -> "Intervals":
        """The intervals of a run, from all of its events."""
        before = pl.col("end_ns").shift(1).over("request", "turn_ns")
        found = generated_passes(events).with_columns(before_ns=before)
        written = [pl.Series(paused_ns(events, found[name].fill_null(0).to_numpy())) for name in ("end_ns", "before_ns")]
        took = pl.col("end_ns") - pl.col("before_ns") - (written[0] - written[1])
        return cls(found.with_columns(took_ns=took))

    @property
    def counted(self) -> pl.DataFrame:
        """The passes after the first one of their turn."""
        return self.passes.drop_nulls("before_ns")

    @property
    def num_tokens(self) -> int:
        """Tokens that the counted passes committed."""
        return int(self.counted["committed_tokens"].sum())

    @property
    def time_ns(self) -> int:
        """Time of the counted passes, each from the end of the pass before it."""
        return int(self.counted["took_ns"].sum())

    def token_ns(self) -> np.ndarray:
        """One time per counted token: a pass that commits n tokens in d ns counts as n intervals of d / n."""
        return self._per_token(self.counted["took_ns"].to_numpy())

    def inside(self, events: pl.DataFrame) -> pl.DataFrame:
        """The events of generation phases within a counted interval of their request, in their order."""
        spans = self.counted.group_by("request", "turn_ns").agg(pl.col("before_ns").min(), pl.col("end_ns").max())
        spans = spans.select("request", "end_ns", t_ns="before_ns").sort("t_ns")
        events = generated(events)
        found = _nearest(events.select("request", "t_ns"), spans, "backward")
        return events[found.filter(pl.col("t_ns") <= pl.col("end_ns"))["row"]]

    def committed(self, rows: pl.DataFrame) -> np.ndarray:
        """`[len(rows)]` tokens committed by the pass of each row; all rows must be inside counted intervals."""
        return self.passes["committed_tokens"].to_numpy()[self._pass_numbers(rows, "t_ns").to_numpy()]

    def per_token(self, rows: pl.DataFrame, column: str, time: str) -> np.ndarray:
        """`[num_tokens]`: the sum of a column over the rows of a token's pass, divided equally among the pass's tokens.

        A row belongs to the next pass of its request that ends at or after the row's `time`; a row without a time to none.
        """
        rows = rows.drop_nulls(time)
        numbers = self._pass_numbers(rows, time)
        placed = rows.select(column, number=numbers).drop_nulls()
        sums = np.bincount(placed["number"].to_numpy(), placed[column].to_numpy(), self.passes.height)
        return self._per_token(sums[self.passes["before_ns"].is_not_null().to_numpy()])

    def _per_token(self, values: np.ndarray) -> np.ndarray:
        committed = self.counted["committed_tokens"].to_numpy()
        return np.repeat(values / committed, committed)

    def _pass_numbers(self, rows: pl.DataFrame, time: str) -> pl.Series:
        """For each row, the number of its pass in `passes`; null: no pass of its request ends at or after the row."""
        ends = self.passes.select("request", t_ns="end_ns").with_row_index("number")
        return _nearest(rows.select("request", t_ns=time), ends, "forward")["number"]


def _nearest(rows: pl.DataFrame, marks: pl.DataFrame, strategy: Literal["backward", "forward"]) -> pl.DataFrame:
    """`rows` (`request`, `t_ns`) with their `row` number, each joined with the nearest of `marks` of its request.

    A row without a request is joined by time alone.
    """
    rows = rows.with_row_index("row").sort("t_ns")
    known = pl.col("request").is_not_null()
    named = rows.filter(known).join_asof(marks, on="t_ns", by="request", strategy=strategy, check_sortedness=False)
    unnamed = rows.filter(~known).join_asof(marks.drop("request"), on="t_ns", strategy=strategy)
    return pl.concat([named, unnamed]).sort("row")
