"""Which prefill mode is faster for the next tile: read whole layers in sequence, or the union of what its tokens choose.

Arithmetic on what was measured: how often each expert was used so far tells the union of the next T tokens, the disk's
envelope tells what its records cost apart and in sequence, and earlier tiles tell what a token costs to compute. There is no
prompt length at which one mode takes over.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from workbench.units import GB, NS_PER_S

_PRIOR_TOKENS = 16.0
"""Tokens that the uniform assumption about a layer's experts is worth against what was measured."""
_MARGIN = 0.01
"""Share of its time by which the mode that reads more must be faster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskRates:
    """What the disk gives, from elsewhere: never from the run itself."""

    sparse_bytes_per_s: float
    """Single records of a layer."""
    sequential_bytes_per_s: float
    """Large extents."""
    source: str
    """Where the figures come from."""


UNKNOWN_DISK = DiskRates(sparse_bytes_per_s=GB, sequential_bytes_per_s=GB, source="assumed: 1 GB/s, apart or in sequence")


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Predicted times of a tile."""

    macro_ns: float
    micro_ns: float
    union: float
    """Records of a layer that it is expected to use, mean over layers."""

    @property
    def mode(self) -> str:
        """The faster mode; micro where they are about equal, since it reads less."""
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
        """Of each expert `[E]`: that at least one of the next `num_tokens` tokens uses it."""
        return self._clumping * self._independent(layer, num_tokens)

    def _independent(self, layer: int, num_tokens: int) -> np.ndarray:
        rows = self._rows.get(layer, np.zeros(self._num_experts))
        share = (rows + _PRIOR_TOKENS * self._uniform) / (self._tokens.get(layer, 0) + _PRIOR_TOKENS)
        return 1 - (1 - np.minimum(share, 1)) ** num_tokens

    def observe(self, layer: int, rows: np.ndarray, num_tokens: int) -> None:
        """A tile of `num_tokens` gave each expert `rows [E]` of them."""
        if layer in self._rows:
            # tokens of one text choose alike, so their union is smaller than that of independent ones
            found = np.count_nonzero(rows) / self._independent(layer, num_tokens).sum()
            self._clumping += (min(found, 1.0) - self._clumping) / 2
        self._rows[layer] = self._rows.get(layer, np.zeros(self._num_experts)) + rows
        self._tokens[layer] = self._tokens.get(layer, 0) + num_tokens


class Costs:
    """Compute of one layer as measured so far, a token: before its router has spoken, and of its experts."""

    def __init__(self) -> None:
        self._before_ns = self._experts_ns = 0
        self._num_tokens = 0

    def observe(self, num_tokens: int, before_ns: int, experts_ns: int) -> None:
        """One layer of a tile took so long, waits for bytes left out."""
        self._before_ns += before_ns
        self._experts_ns += experts_ns
        self._num_tokens += num_tokens

    def of(self, num_tokens: int) -> tuple[float, float]:
        """Nanoseconds before the router and in the experts; 0 before anything was measured."""
        tokens = max(1, self._num_tokens)
        return num_tokens * self._before_ns / tokens, num_tokens * self._experts_ns / tokens


class Crossover:
    """Predicts both modes for one store and one disk."""

    def __init__(
        self, rates: DiskRates, *, record_bytes: int, num_experts: int, top_k: int, ring_bytes: int, records_per_call: int
    ) -> None:
        """`ring_bytes`: records that may be read ahead of the layer that computes. `records_per_call`: neighbours of a union
        that the reader takes together at most.
        """
        self.rates = rates
        self.usage = Usage(num_experts, top_k)
        self.costs = Costs()
        self._num_experts, self._records_per_call = num_experts, records_per_call
        self._apart_ns = NS_PER_S * record_bytes / rates.sparse_bytes_per_s
        self._together_ns = NS_PER_S * record_bytes / rates.sequential_bytes_per_s
        self._ahead_ns = NS_PER_S * ring_bytes / rates.sequential_bytes_per_s

    def predict(self, num_tokens: int, resident: Mapping[int, np.ndarray]) -> Estimate:
        """Times of a tile through the layers of `resident`, which tells the experts `[E]` whose records are in memory."""
        before_ns, experts_ns = self.costs.of(num_tokens)
        macro_ns = micro_ns = union = 0.0
        whole_ns = (self._num_experts - 1) * self._together_ns + self._apart_ns
        for layer, there in resident.items():
            chances = self.usage.chances(layer, num_tokens)
            union += chances.sum()
            # reads of the union start when the router has spoken, those of the layer run ahead as far as the ring holds
            micro_ns += before_ns + max(experts_ns, self._read_ns(np.where(there, 0.0, chances)))
            macro_ns += before_ns + max(experts_ns, whole_ns - min(before_ns, self._ahead_ns))
        return Estimate(macro_ns=macro_ns, micro_ns=micro_ns, union=union / len(resident))

    def _read_ns(self, chances: np.ndarray) -> float:
        """Reading a union: every record costs its bytes, every call the rest of what a record apart costs."""
        follows = np.concatenate([[0.0], chances[:-1]])
        runs, records = float((chances * (1 - follows)).sum()), float(chances.sum())
        calls = max(runs, records / self._records_per_call)
        return records * self._together_ns + calls * (self._apart_ns - self._together_ns)
