"""Gate C: can exact reads be hidden behind compute without predicting anything?"""

from workbench.gates.c_overlap.config import OverlapConfig
from workbench.gates.c_overlap.gate import GATE

__all__ = ["GATE", "OverlapConfig"]
