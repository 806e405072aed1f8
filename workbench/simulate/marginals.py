"""Marginals of routes (locality statistics): those published for Flash-Next, and those of a route array beside them."""

from dataclasses import asdict, dataclass

import numpy as np

from workbench.simulate.synthetic import RouteModel, synthetic_routes

NUM_SHORT_TOKENS = 220
"""Decode steps over which the published popularity figures were counted."""


@dataclass(frozen=True, kw_only=True)
class Marginals:
    """Locality statistics of a router. The reuse distance of a record's first use is infinite."""

    prev_token_overlap: float
    """Share of a token's experts that the previous token used in the same layer, mean over layers."""
    early_overlap: float
    """`prev_token_overlap` of layers 0 to 7 alone."""
    union_b4: float
    """Distinct experts per layer over 4 consecutive tokens, mean."""
    reuse_distance_p50: float
    """Median number of tokens since the previous use of a record."""
    reused_within_64: float
    """Share of uses at most 64 tokens after the previous use of the record."""
    top_tenth_share: float
    """Share of uses that the most used tenth of all records serves, over 220 tokens."""
    touched_share: float
    """Share of all records that 220 tokens use."""


PUBLISHED = Marginals(
    prev_token_overlap=0.35,
    early_overlap=0.21,
    union_b4=27.0,
    reuse_distance_p50=3.0,
    reused_within_64=0.92,
    top_tenth_share=0.709,
    touched_share=9956 / 24_576,
)
"""Slotstream's trace of 220 decode steps (overlaps .34 and .21, popularity) and Infernix' of 383 (overlap .36, union, reuse)."""


def marginals(routes: np.ndarray, num_experts: int, *, num_early_layers: int = 8) -> Marginals:
    """Marginals of one request's expert ids `[tokens, layers, top_k]`; its first `num_early_layers` layers count as early."""
    num_tokens, num_layers, top_k = routes.shape
    used = np.zeros((num_tokens, num_layers, num_experts), bool)
    np.put_along_axis(used, routes.astype(np.int64), True, axis=-1)
    overlap = (used[1:] & used[:-1]).sum(-1) / top_k
    distances = _reuse_distances(used)
    counts = np.sort(used[:NUM_SHORT_TOKENS].sum(0), axis=None)[::-1]
    return Marginals(
        prev_token_overlap=float(overlap.mean()),
        early_overlap=float(overlap[:, :num_early_layers].mean()),
        union_b4=float((used[3:] | used[2:-1] | used[1:-2] | used[:-3]).sum(-1).mean()),
        reuse_distance_p50=float(np.median(distances)),
        reused_within_64=float((distances <= 64).mean()),
        top_tenth_share=float(counts[: len(counts) // 10].sum() / counts.sum()),
        touched_share=float((counts > 0).mean()),
    )


def _reuse_distances(used: np.ndarray) -> np.ndarray:
    """Tokens since the previous use, for each use in `used [tokens, layers, experts]`; infinite at a first use."""
    last = np.full(used.shape[1:], -np.inf)
    distances = []
    for token, now in enumerate(used):
        distances.append(token - last[now])
        last[now] = token
    return np.concatenate(distances)


def marginals_beside_published(model: RouteModel, *, seed: int = 0, num_tokens: int = 383) -> list[dict[str, float | str]]:
    """One row per marginal: published, synthetic (one request of `model`) and the error in percent."""
    routes = synthetic_routes(model, num_requests=1, num_tokens=num_tokens, seed=seed)
    found = asdict(marginals(routes[0], model.num_experts, num_early_layers=model.num_early_layers))
    return [
        {"marginal": name, "published": value, "synthetic": found[name], "error_percent": 100 * (found[name] / value - 1)}
        for name, value in asdict(PUBLISHED).items()
    ]
