"""Settings and pre-registered thresholds of Gate B."""

from pydantic import Field

from workbench.config import Share
from workbench.experiments.stalls import StallConfig
from workbench.experiments.trace import TraceConfig
from workbench.gates.base import GateConfig
from workbench.gates.traces import TraceSource
from workbench.policies import PolicyName


class LocalityConfig(GateConfig):
    """Settings of Gate B; the thresholds were registered before the first trace was recorded."""

    trace: str = ""
    """A route trace (parquet) to analyse; empty: one is recorded from held-out prompts, or a fresh one reused."""
    requests: int = Field(default=40, ge=1)
    """Requests to record."""
    tokens: int = Field(default=128, ge=6)
    """Tokens to decode in each."""
    fractions: tuple[Share, ...] = (0.10, 0.15, 0.20, 0.25, 0.30, 0.40, 0.50, 0.75, 1.0)
    """Cache capacities to replay, as shares of all records."""
    policies: tuple[PolicyName, ...] = ("lru", "lfru", "belady")
    """Cache policies to replay; `lfru` and `belady` are always among them."""
    keep_cache: bool = True
    """True: a request starts with the cache that the request before left, as in one session; false: with an empty cache."""
    stalls: StallConfig = StallConfig()
    """Simulations of the time that a token waits for bytes."""
    resamples: int = Field(default=2000, ge=100, le=1_000_000)
    """Bootstrap resamples of the requests."""
    min_requests: int = 40
    """Held-out requests that a full verdict needs."""
    min_tokens: int = 128
    """Decoded tokens that each of them needs."""
    at_fraction: float = Field(default=0.25, gt=0, le=1)
    """B.locality: capacity, as a share of all records."""
    max_miss_ratio: float = 0.85
    """B.locality: LFRU's misses per token, routes / independent draws; fails unless below this."""
    max_union_ratio: float = 0.95
    """B.union: distinct experts of 4 tokens, routes / independent draws; fails above this."""
    max_acceptance: float = 0.80
    """B.breakeven: acceptance needed at the best block of 2 to 5 tokens; fails above this."""

    @property
    def source(self) -> TraceSource:
        """The trace file or the recording that these settings ask for."""
        recording = TraceConfig(profile=self.profile, requests=self.requests, tokens=self.tokens)
        seeded = recording.sampling.model_copy(update={"seed": self.seed})
        return TraceSource(file=self.trace, recording=recording.model_copy(update={"sampling": seeded}))

    @property
    def capacities(self) -> tuple[float, ...]:
        """Fractions to replay, the criterion's among them, ascending."""
        return tuple(sorted({*self.fractions, self.at_fraction}))


REGISTERED = ("min_requests", "min_tokens", "at_fraction", "max_miss_ratio", "max_union_ratio", "max_acceptance")
"""Settings that the verdict turns on."""
