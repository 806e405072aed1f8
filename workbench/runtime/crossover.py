"""Which prefill mode is faster for the next tile: read whole layers in sequence, or the union of what its tokens choose.

Arithmetic on what was measured: how often each expert was used so far tells the union of the next T tokens, the disk's
envelope tells what its records cost apart and in sequence, and earlier tiles tell what tokens cost to compute and what the
disk sustains in each mode. There is no prompt length at which one mode takes over.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from workbench.units import GB, NS_PER_S

_PRIOR_TOKENS = 16.0
"""Weight of the uniform prior over a layer's experts, in tokens."""
_MARGIN = 0.02
"""Relative gain from which macro, which reads more bytes, is chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskRates:
    """Rates of the disk, known before the run."""

    sparse_bytes_per_s: float
    """Rate of single records of a layer, bytes/s."""
    sequential_bytes_per_s: float
    """Rate of large extents, bytes/s."""
    source: str
    """Source of the rates."""


UNKNOWN_DISK = DiskRates(sparse_bytes_per_s=GB, sequential_bytes_per_s=GB, source="assumed: 1 GB/s, apart or in sequence")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadEstimate:
    """Predicted times of a tile."""

    macro_ns: float
    micro_ns: float
    union: float
    """Expected number of records per layer that the tile uses."""

    @property
    def mode(self) -> str:
        """The faster mode; micro where both are about equal, since micro reads fewer bytes."""
        return "macro" if self.macro_ns < (1 - _MARGIN) * self.micro_ns else "micro"


class Usage:
    """How often each expert was used, by layer: uniform before the first tile."""

    def __init__(self, num_experts: int, top_k: int) -> None:
        self._uniform = top_k / num_experts
        self._num_experts = num_experts
        self._rows: dict[int, np.ndarray] = {}
        self._tokens: dict[int, int] = {}
        self._clumping = 1.0

    def chances(self, layer: int, num_tokens: int) -> np.ndarray:
        """Probability of each expert `[E]` that at least one of the next `num_tokens` tokens uses it."""
        return self._clumping * self._independent(layer, num_tokens)

    def _independent(self, layer: int, num_tokens: int) -> np.ndarray:
        rows = self._rows.get(layer, np.zeros(self._num_experts))
        share = (rows + _PRIOR_TOKENS * self._uniform) / (self._tokens.get(layer, 0) + _PRIOR_TOKENS)
        return 1 - (1 - np.minimum(share, 1)) ** num_tokens

    def observe(self, layer: int, rows: np.ndarray, num_tokens: int) -> None:
        """Updates the counts with a tile of `num_tokens` tokens that gave each expert `rows [E]` rows."""
        if layer in self._rows:
            # tokens of one text choose alike, so their union is smaller than that of independent ones
            found = np.count_nonzero(rows) / self._independent(layer, num_tokens).sum()
            self._clumping += (min(found, 1.0) - self._clumping) / 2
        self._rows[layer] = self._rows.get(layer, np.zeros(self._num_experts)) + rows
        self._tokens[layer] = self._tokens.get(layer, 0) + num_tokens


class Cost:
    """Compute time of one layer as a linear function of its number of tokens, fitted to the tiles so far."""

    def __init__(self) -> None:
        self._sums = np.zeros(5)

    def observe(self, num_tokens: int, cost_ns: float) -> None:
        """Adds the measured time of one layer of a tile."""
        self._sums += (1, num_tokens, num_tokens**2, cost_ns, num_tokens * cost_ns)

    def of(self, num_tokens: int) -> float:
        """Expected nanoseconds; 0 before anything was measured."""
        count, tokens, squares, total_ns, product = self._sums
        spread = count * squares - tokens**2
        if spread <= 0:
            return float(num_tokens * total_ns / max(1, tokens))
        slope = min(max(0.0, (count * product - tokens * total_ns) / spread), total_ns / tokens)
        return float(total_ns / count + slope * (num_tokens - tokens / count))


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRun:
    """Measured times of one layer of a tile."""

    mode: str
    num_tokens: int
    before_ns: int
    """From the end of the previous layer to the router's choice."""
    run_ns: int
    """From the router's choice to the end of the layer's experts."""
    waited_ns: int
    """Exposed wait within `run_ns`."""


class Crossover:
    """Predicts a tile's time in both modes, for one store and one disk."""

    def __init__(
        self, rates: DiskRates, *, record_bytes: int, num_experts: int, top_k: int, ring_bytes: int, records_per_call: int
    ) -> None:
        """`ring_bytes`: records that may be read ahead of the layer that computes. `records_per_call`: neighbours of a union
        that the reader takes together at most.
        """
        self.rates = rates
        self.usage = Usage(num_experts, top_k)
        self.before, self.experts = Cost(), Cost()
        self._slowness = {"macro": 1.0, "micro": 1.0}
        self._num_experts, self._records_per_call = num_experts, records_per_call
        self._apart_ns = NS_PER_S * record_bytes / rates.sparse_bytes_per_s
        self._together_ns = NS_PER_S * record_bytes / rates.sequential_bytes_per_s
        self._ahead_ns = NS_PER_S * ring_bytes / rates.sequential_bytes_per_s

    def predict(self, num_tokens: int, resident: Mapping[int, np.ndarray]) -> ReadEstimate:
        """Predicts the times of a tile. `resident`: by layer, whether each expert's record `[E]` is in memory."""
        before_ns, experts_ns = self.before.of(num_tokens), self.experts.of(num_tokens)
        macro_ns = micro_ns = union = 0.0
        whole_ns = self._slowness["macro"] * self._whole_ns
        for layer, there in resident.items():
            chances = self.usage.chances(layer, num_tokens)
            union += chances.sum()
            # micro reads start after the router, macro reads ahead of it by as much as the chunk buffer holds
            micro_ns += before_ns + max(experts_ns, self._slowness["micro"] * self._read_ns(np.where(there, 0.0, chances)))
            macro_ns += before_ns + max(experts_ns, whole_ns - min(before_ns, self._ahead_ns))
        return ReadEstimate(macro_ns=macro_ns, micro_ns=micro_ns, union=union / len(resident))

    def observe(self, layer: int, run: LayerRun, rows: np.ndarray, absent: np.ndarray) -> None:
        """Learns from one layer of a tile: `rows [E]` per expert; `absent [E]`: experts that had to be read."""
        self.usage.observe(layer, rows, run.num_tokens)
        self.before.observe(run.num_tokens, run.before_ns)
        self.experts.observe(run.num_tokens, run.run_ns - run.waited_ns)
        if 2 * run.waited_ns > run.run_ns:
            self._learn_rate(run, absent)

    def _learn_rate(self, run: LayerRun, absent: np.ndarray) -> None:
        """Corrects a mode's read time where reads were the bottleneck: half way to measured / expected time."""
        expected_ns, found_ns = self._read_ns(absent.astype(float)), float(run.run_ns)
        if run.mode == "macro":
            expected_ns, found_ns = self._whole_ns, found_ns + min(run.before_ns, self._ahead_ns)
        if expected_ns:
            self._slowness[run.mode] += (found_ns / expected_ns - self._slowness[run.mode]) / 2

    @property
    def _whole_ns(self) -> float:
        return (self._num_experts - 1) * self._together_ns + self._apart_ns

    def _read_ns(self, chances: np.ndarray) -> float:
        """Time to read a union: every record costs its bytes, every call the fixed part of a single record's time."""
        follows = np.concatenate([[0.0], chances[:-1]])
        runs, records = float((chances * (1 - follows)).sum()), float(chances.sum())
        calls = max(runs, records / self._records_per_call)
        return records * self._together_ns + calls * (self._apart_ns - self._together_ns)
