"""Upper bounds on decode speed that follow from geometry and bandwidth: computed first, then measured, then compared."""

from collections.abc import Sequence
from dataclasses import dataclass

from workbench.geometry import Geometry


def ideal_routed_bytes_per_token(geometry: Geometry, bits: int) -> int:
    """Routed bytes per token at `bits` per weight, without scales and padding."""
    return geometry.routed_parameter_uses_per_token * bits // 8


def bandwidth_bound_tps(bytes_per_token: float, bandwidth_bytes_per_s: float) -> float:
    """Tokens/s when only bandwidth limits: `bandwidth / bytes per token` (infinite when a token reads nothing)."""
    return bandwidth_bytes_per_s / bytes_per_token if bytes_per_token > 0 else float("inf")


def union_break_even(tau: float, num_experts_per_tok: int) -> float:
    """Largest union `U_B` of a verified block that does not raise routed bytes per committed token: `top_k * tau`."""
    return num_experts_per_tok * tau


def acceptance_needed(union: float, block: int, num_experts_per_tok: int) -> float:
    """Share of a block's tokens that must be committed for its union to break even: `U_B / (top_k * B)`."""
    return union / (num_experts_per_tok * block)


def expected_union(num_experts: int, top_k: int, block: int) -> float:
    """Distinct experts of `block` independent uniform draws of `top_k` out of `num_experts`."""
    return num_experts * (1 - (1 - top_k / num_experts) ** block)


@dataclass(frozen=True, kw_only=True)
class LayerCost:
    """One layer of one token, in nanoseconds, as the dependency bound needs it."""

    pre_router_ns: float
    """Compute before the router's ids are known: PLE, hyper-connections, GDN or QSA, router."""
    first_read_ns: float
    """Time until the first missing record could be ready; 0 where all are resident."""
    all_reads_ns: float
    """Time until the last missing record could be ready at the envelope's bandwidth; 0 where all are resident."""
    shared_ns: float
    """Compute that needs no routed bytes (the shared expert): it can fill the wait for the first read."""
    hits_ns: float
    """Compute of the routed experts that are resident: it can fill the wait for the first read, too."""
    experts_ns: float
    """Compute of all routed experts of the layer."""
    last_expert_ns: float
    """Compute of the one expert that must follow the last read."""


def dependency_bound_ns(layers: Sequence[LayerCost], fixed_ns: float = 0.0) -> float:
    """Token time when reads overlap all they may; `fixed_ns` is compute outside the layers (embedding, head).

    A layer takes pre-router + max(max(first read, shared + hits) + the other experts, all reads + last expert).
    """
    return fixed_ns + sum(
        layer.pre_router_ns
        + max(
            max(layer.first_read_ns, layer.shared_ns + layer.hits_ns) + layer.experts_ns - layer.hits_ns,
            layer.all_reads_ns + layer.last_expert_ns,
        )
        for layer in layers
    )
