"""Qwen4Exp in MLX. No I/O, no clocks, no policy."""

from workbench.model.experts import QuantizedMatrix, expert_forward, stacked_expert_forward
from workbench.model.model import Model
from workbench.model.moe import Route
from workbench.model.state import SequenceState

__all__ = ["Model", "QuantizedMatrix", "Route", "SequenceState", "expert_forward", "stacked_expert_forward"]
