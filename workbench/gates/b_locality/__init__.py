"""Gate B: do routes repeat enough for a cache or a block of tokens to save bytes?"""

from workbench.gates.b_locality.config import LocalityConfig
from workbench.gates.b_locality.gate import GATE

__all__ = ["GATE", "LocalityConfig"]
